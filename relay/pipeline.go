package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/fault"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/printed"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/letters"
	"github.com/onceward/onceward/relay/internal/snapshot"
	"github.com/onceward/onceward/relay/internal/state"
)

// Source delivers the committed stream. [cdc.Reader] is the one.
type Source interface {
	// Next waits for items and returns all there are, in commit order. The
	// slice is valid until the next call, which is given it for reuse.
	Next(ctx context.Context, used []cdc.Item) ([]cdc.Item, error)
}

// pulse is the longest that the pump waits for the stream before it looks at
// everything else.
const pulse = time.Second

// pipeline moves events from the source to the sink. pump runs in one goroutine,
// which owns everything here but the books.
type pipeline struct {
	*books
	mode    mode
	sink    Sink
	letters letterStore
	rows    rows
	routing *routing
	refused refused
	hooks
	log *slog.Logger

	gaps      ledgerOfGaps
	repairs   []gap            // to be published before the stream
	mended    ledger.Repair    // how far that has come
	streams   atomic.Bool      // that is over
	mendPlace ledger.Place     // of the next of its events that waits
	covered   snapshot.Visible // what the stream leaves out: it was published from the table, or is of a gap

	counted func() int64 // writes of letters and of what waits, ever made

	began ledger.Checkpoint // what had ended when the session began
	at    ledger.Place      // of the next item to be read
	next  ledger.Place      // everything before it was dealt with
	lanes *lanes

	keeper     keeper
	controls   map[uuid.UUID]bool // that wait since before this session
	release    *draining          // nil: none is under way
	releases   int64              // number of the last
	lastCursor ledger.Cursor      // where it ended
	spent      time.Duration      // on the last batch
	shown      time.Time          // what is held was shown last
	skippedFor []uuid.UUID        // what waits was looked through for these
	restedFor  []string           // routes that were paused at the last try
	named      map[string]bool    // routes that are shown by name

	following  []letters.Dead // letters to be written
	followed   []unwritten
	followSize int // of them in memory, in bytes

	steps    []step   // of the batch in hand
	left     []step   // of them, those that were not dealt with
	inHand   []uint64 // the tag of the item of a release that is being handed over, or none
	commit   uint64   // start of the commit whose text is position
	position string   // most transactions have many rows
	alarm    alarm

	words atomic.Pointer[state.Commands] // the operator's, as the checkpoint's goroutine read them
	heard chan struct{}                  // they have changed
}

// refused are events, replays and letters that a broker has refused, and why, until
// a letter says so.
type refused map[uuid.UUID]string

// learn takes them from the error that ended a session, and reports whether it is
// news.
func (r *refused) learn(err error) (news bool) {
	var why *publisher.RefusedError
	if !errors.As(err, &why) {
		return false
	}
	if *r == nil {
		*r = make(refused)
	}
	_, known := (*r)[why.ID]
	(*r)[why.ID] = why.Error()
	return !known
}

// hooks are how a pump tells its session what it does.
type hooks struct {
	tell    func(now phase, why error)        // what the health pages show
	holding func(routes map[string]heldRoute) // likewise, by route
	lend    func(bytes int)                   // of the queue, to what is held
}

// pumpConfig is what a session gives its pump.
type pumpConfig struct {
	start    ledger.Checkpoint // what had ended when the session began
	nonce    uint64            // of the markers that are its own
	state    *state.State      // of the pump's connection
	letters  *letters.Store
	writing  *atomic.Int64 // since when a letter is being written, in Unix nanoseconds; 0: none is
	waiting  *waiting
	routing  *routing
	covered  snapshot.Visible // what the stream leaves out
	repairs  []gap            // to be published before the stream
	refused  refused
	observer observer
	hooks    hooks
	log      *slog.Logger
}

// newPump lets wait what waited before. Its mode is chosen next.
func newPump(ctx context.Context, conf pumpConfig) (*pipeline, error) {
	held, controls, err := conf.waiting.load(ctx)
	if err != nil {
		return nil, err
	}
	p := newPipeline(conf.start, newBooks(&conf.start, conf.nonce, conf.observer), conf.log)
	p.letters, p.keeper, p.controls = ownLetters{conf.letters, conf.writing}, conf.waiting, controls
	p.rows, p.gaps = outboxRows{conf.state}, &gapRows{pumps: conf.state}
	p.routing, p.covered, p.repairs, p.refused, p.hooks = conf.routing, conf.covered, conf.repairs, conf.refused, conf.hooks
	p.counted = func() int64 { return conf.state.Written }
	p.counts.parkedNow(p.letters.ParkedCount())
	p.takeUp(held)
	return p, nil
}

// idempotently has Kafka acknowledge every event, to [pipeline.acknowledged]. saved is
// the checkpoint in PostgreSQL.
func (p *pipeline) idempotently(sink Sink, flush flusher, saved *atomic.Pointer[ledger.Checkpoint]) {
	p.sink, p.mode = sink, &idempotent{books: p.books, sink: flush, saved: saved}
}

// transactions bound those of exactly-once mode.
type transactions struct {
	interval time.Duration
	maxBytes int64
	bound    ledger.Checkpoint                        // timeline and session of every checkpoint
	segment  pglogrepl.LSN                            // bytes of a segment of the server's log
	tick     func(ctx context.Context) (int64, error) // raises the one in the database, durably
}

// exactlyOnce commits events and checkpoint in one Kafka transaction.
func (p *pipeline) exactlyOnce(sink Sink, tx transactional, conf transactions) {
	m := &exactlyOnce{
		books: p.books, tx: tx, interval: conf.interval, maxBytes: conf.maxBytes, bound: conf.bound, tick: conf.tick, cut: p.cut, before: p.writeDown,
		committed: time.Now(), idle: ledger.Idle{Segment: conf.segment, Owed: true},
	}
	m.known.position, m.known.reach = p.began.Order, p.began.Reach
	p.sink, p.mode = sink, m
}

// hasEnded tells how far everything has ended, durably. Safe for concurrent use.
func (p *pipeline) hasEnded() (status, error) { return p.mode.status() }

// leaves is what the next session of this process begins with; zero when that is to
// be read elsewhere.
func (p *pipeline) leaves() (ledger.Checkpoint, error) { return p.mode.ended() }

// flushSink ends what was handed over, without what is to be written: for
// [fault.NoEpoch].
func (p *pipeline) flushSink(ctx context.Context) error { return p.mode.flush(ctx) }

// repaired reports whether the gaps are published, and the stream is read.
func (p *pipeline) repaired() bool { return p.streams.Load() }

func newPipeline(began ledger.Checkpoint, b *books, log *slog.Logger) *pipeline {
	p := &pipeline{
		books: b, began: began, lanes: newLanes(), releases: began.Release, lastCursor: began.Cursor, log: log, heard: make(chan struct{}, 1),
	}
	p.named = make(map[string]bool)
	p.words.Store(&state.Commands{})
	p.counted = func() int64 { return 0 }
	p.hooks = hooks{tell: func(phase, error) {}, holding: func(map[string]heldRoute) {}, lend: func(int) {}}
	return p
}

// pump hands over what the source delivers until either fails or ctx ends.
func (p *pipeline) pump(ctx context.Context, source Source) error {
	defer p.alarm.stop()
	var batch []cdc.Item
	for {
		taken, err := p.await(ctx, source, batch)
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil // the source was told to stop
			}
			return err
		}
		if taken != nil {
			batch = taken
		}
		began := time.Now()
		if err := p.take(ctx, taken); err != nil {
			return err
		}
		p.spent = time.Since(began) / drainShare
		if err := p.turn(ctx, len(taken) == 0); err != nil {
			return err
		}
	}
}

// await waits for items, but not beyond the time when something else is due;
// then it returns none.
func (p *pipeline) await(ctx context.Context, source Source, used []cdc.Item) ([]cdc.Item, error) {
	limited := p.alarm.set(ctx, p.wake(time.Now()))
	batch, err := source.Next(limited, used)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil && limited.Err() != nil:
		return nil, nil //nolint:nilerr // no items: the time was up
	}
	return batch, err
}

// wake returns when the pump has something to do though nothing is read.
func (p *pipeline) wake(now time.Time) time.Time {
	at := now.Add(pulse)
	for _, other := range []time.Time{p.lanes.wake(), p.mode.wake(now), p.drainWake(now)} {
		if !other.IsZero() && other.Before(at) {
			at = other
		}
	}
	return at
}

// take deals with a batch.
func (p *pipeline) take(ctx context.Context, batch []cdc.Item) error {
	if err := p.complete(ctx, batch); err != nil {
		return err
	}
	if err := p.read(batch); err != nil {
		return err
	}
	if fault.Is(fault.Reorder) {
		reorder(batch)
	}
	if fault.Is(fault.Alter) {
		alter(batch)
	}
	for i := range p.steps {
		if err := p.deal(ctx, &p.steps[i]); err != nil {
			return err
		}
		p.next = p.steps[i].at.After()
		p.left = p.steps[i+1:]
		if i%64 == 63 { // a long batch is no reason to be late
			if err := p.settle(ctx, false); err != nil {
				return err
			}
		}
	}
	p.next = p.at
	p.mark()
	return nil
}

// read records the whole batch in the progress, under one lock, before any of it
// is handed over, and leaves in steps what has to be dealt with: all that had
// not ended when the session began.
func (p *pipeline) read(batch []cdc.Item) error {
	p.steps = p.steps[:0]
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range batch {
		it := &batch[i]
		if it.Row == nil && it.Control == nil {
			if err := p.note(it); err != nil {
				return fmt.Errorf("read stream: %w", err)
			}
			continue
		}
		if it.Commit != p.at.Commit {
			p.at = ledger.Place{Commit: it.Commit}
		}
		p.unseen.Add(it)
		s := step{it: it, at: p.at}
		p.at.Ordinal++
		if p.hadEnded(&s) {
			continue
		}
		p.progress.Open(it.CommitTime)
		s.tag = p.progress.Read()
		p.steps = append(p.steps, s)
		if fault.Is(fault.ConfirmEarly) {
			_ = p.progress.End(s.tag, ledger.Acknowledged)
		}
	}
	p.left = p.steps
	p.owing += uint64(len(p.steps))
	p.counts.read(len(p.steps))
	return nil
}

// hadEnded applies the resume rule. A control acts again until its transaction
// has ended, unless it waits: its letters were opened when the session began, and
// those that are out already are left out then.
func (p *pipeline) hadEnded(s *step) bool {
	switch {
	case s.at.Commit < p.began.Order:
		return true
	case s.it.Kind == cdc.KindControl && p.controls[s.it.Control.ID]:
		return true
	case !s.at.Before(p.began.UpTo):
		return false
	case s.it.Kind != cdc.KindControl:
		return true
	}
	s.again = true
	return false
}

// deal publishes a step, or lets it wait with its lane.
func (p *pipeline) deal(ctx context.Context, s *step) error {
	if c := s.it.Control; c != nil && c.LetterID != uuid.Nil && c.Action == cdc.ActionRetry {
		if err := p.findLane(ctx, s); err != nil {
			return err
		}
	}
	if s.it.Kind != cdc.KindControl {
		dead, err := p.letters.Ended(ctx, s.id(), s.at.Commit)
		if err != nil {
			return err
		}
		if dead {
			p.counts.skipped(skippedByLetter)
			return p.end(s.tag, ledger.Letter)
		}
	}
	if p.leavesOut(s.it) {
		p.counts.skipped(skippedByGap)
		return p.end(s.tag, ledger.Skipped)
	}
	return p.deliverOrHold(ctx, s)
}

// deliverOrHold publishes a step, or lets it wait with its lane.
func (p *pipeline) deliverOrHold(ctx context.Context, s *step) error {
	if !s.again && p.lanes.any() {
		if w := p.lanes.find(s.lane()); w != nil {
			return p.queue(ctx, w, s)
		}
	}
	err := p.deliver(ctx, s)
	if err == nil {
		return nil
	}
	var route *publisher.RouteError
	if errors.As(err, &route) {
		return p.hold(ctx, s, route)
	}
	return err
}

// leavesOut reports whether an event is not the stream's to publish: it is of a gap,
// or was published from the table. A row whose tx_id is not its own is judged by
// nothing but its letter.
func (p *pipeline) leavesOut(it *cdc.Item) bool {
	return it.Kind == cdc.KindEvent && it.Bad == nil && p.covered.Sees(it.Row.TxID)
}

// deliver does what a step asks for. After a [publisher.RouteError] it is to be
// called with the step again.
func (p *pipeline) deliver(ctx context.Context, s *step) error {
	if s.it.Kind == cdc.KindControl {
		err := p.obey(ctx, s)
		if errors.Is(err, publisher.ErrPartitions) {
			return p.stand(ctx, err)
		}
		return err
	}
	if p.word().Skips(s.id()) {
		if done, err := p.skip(ctx, s, ""); done || err != nil {
			return err
		}
	}
	switch {
	case s.it.Replay == nil && p.letters.Parked(s.it.Row, s.at.Commit):
		return p.follow(ctx, s)
	case s.it.Bad != nil:
		return p.poison(ctx, s, letters.ClassBadRow, s.it.Bad)
	}
	if why, ok := p.refused[s.id()]; ok {
		return p.poison(ctx, s, letters.ClassRecord, errors.New(why))
	}
	ev := p.event(s)
	if rests := p.rests(ev); rests != nil {
		return rests
	}
	err := p.sink.Publish(ctx, ev)
	switch {
	case err == nil:
		return p.mode.handed(s)
	case errors.Is(err, publisher.ErrRecord):
		return p.poison(ctx, s, letters.ClassRecord, err)
	case errors.Is(err, publisher.ErrPartitions):
		return p.stand(ctx, err)
	}
	return err
}

// rests returns why an event waits for the operator who paused its route; nil
// when it does not.
func (p *pipeline) rests(ev publisher.Event) *publisher.RouteError {
	if paused := p.word().Routes; len(paused) > 0 {
		return p.routing.rests(ev, paused)
	}
	return nil
}

func (p *pipeline) event(s *step) publisher.Event {
	if commit := uint64(s.at.Commit); commit != p.commit || p.position == "" {
		p.commit, p.position = commit, positionText(s.at.Commit)
	}
	ev := publisher.Event{Row: s.it.Row, Tag: s.tag, Position: p.position, RepairID: s.repair}
	if r := s.it.Replay; r != nil {
		ev.Topic = r.Topic
		ev.Replay = &publisher.Replay{ID: r.ID, Mode: r.Mode, Group: r.Group}
	}
	return ev
}

// positionText is the position as PostgreSQL writes it, with one allocation.
func positionText(at pglogrepl.LSN) string {
	var buf [17]byte
	text := strconv.AppendUint(buf[:0], uint64(at>>32), 16)
	text = append(text, '/')
	text = strconv.AppendUint(text, uint64(at&math.MaxUint32), 16)
	for i, c := range text {
		if c >= 'a' {
			text[i] = c - 'a' + 'A'
		}
	}
	return string(text)
}

// turn does what is due beside the stream: what waits is tried again, oldest
// first, and what was handed over is settled. paused says that the stream has
// nothing more for now.
func (p *pipeline) turn(ctx context.Context, paused bool) error {
	if p.lanes.any() || p.release != nil {
		if err := p.heal(ctx); err != nil {
			return err
		}
	}
	p.show(time.Now())
	return p.settle(ctx, paused)
}

// settle ends what is due, letters first: the next place is behind them. While
// an operator wants the relay to rest, it rests here.
func (p *pipeline) settle(ctx context.Context, paused bool) error {
	if err := p.bury(ctx); err != nil {
		return err
	}
	if p.lanes.toWrite(time.Now()) {
		if err := p.writeDown(ctx); err != nil {
			return err
		}
	}
	if err := p.mode.settle(ctx, time.Now(), paused); err != nil {
		return err
	}
	if err := p.letters.Settle(ctx, p.mode.durable().Order); err != nil {
		return err
	}
	if !p.word().Paused {
		return nil
	}
	p.log.WarnContext(ctx, "paused by an operator")
	p.tell(phasePaused, nil)
	for p.word().Paused {
		if err := p.still(ctx); err != nil {
			return err
		}
		if p.release != nil && p.release.inPage {
			continue // what was read of it would go out all the same
		}
		if err := p.skipWaiting(ctx); err != nil {
			return err
		}
	}
	p.log.InfoContext(ctx, "resumed by an operator")
	p.tell(phaseStreams, nil)
	return nil
}

// flush ends everything that was handed over, and knows it then: the pump may have
// returned in the middle of a batch. The pump has returned.
func (p *pipeline) flush(ctx context.Context) error {
	if err := p.bury(ctx); err != nil {
		return err
	}
	if err := p.writeDown(ctx); err != nil {
		return err
	}
	if err := p.mode.flush(ctx); err != nil {
		return err
	}
	p.mark()
	return nil
}

// cut is what has ended once everything that was handed over has: order, reach,
// repair and letters.
func (p *pipeline) cut() ledger.Checkpoint {
	return ledger.Checkpoint{Order: p.progress.Position(), Reach: p.reach(), Repair: p.mended, Letters: p.counted()}
}

// hear takes the operator's words. Safe for concurrent use.
func (p *pipeline) hear(now state.Commands) {
	p.words.Store(&now)
	select {
	case p.heard <- struct{}{}:
	default:
	}
}

func (p *pipeline) word() *state.Commands { return p.words.Load() }

// explain adds the event to an error that ends the session.
func explain(s *step, err error) error {
	if errors.Is(err, publisher.ErrRecord) {
		return fmt.Errorf("event %s (aggregate %s, commit at %s) cannot be published: %w", printed.Key(s.it.Row), printed.Clip(s.it.Row.AggregateType, printed.MaxName), s.at.Commit, err)
	}
	return err
}
