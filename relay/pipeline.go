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
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/record"
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
	morgue  morgue
	rows    rows
	routing *routing
	refused map[uuid.UUID]string       // what a broker has refused, and why; forgotten once a letter says so
	tell    func(State, error)         // what the health pages show
	holding func(map[string]heldRoute) // likewise, by route
	lend    func(bytes int)            // of the queue, to what is held
	log     *slog.Logger

	gaps      ledgerOfGaps
	repairs   []gap       // to be published before the stream
	mended    mended      // how far that has come
	streams   atomic.Bool // that is over
	mendPlace place       // of the next of its events that waits
	covered   visible     // what the stream leaves out: it was published from the table, or is of a gap

	counted func() int64 // writes of letters and of what waits, ever made

	began checkpoint // what had ended when the session began
	at    place      // of the next item to be read
	next  place      // everything before it was dealt with
	lanes *lanes

	keeper     keeper
	controls   map[uuid.UUID]bool // that wait since before this session
	release    *draining          // nil: none is under way
	releases   int64              // number of the last
	lastCursor cursor             // where it ended
	spent      time.Duration      // on the last batch
	shown      time.Time          // what is held was shown last
	skippedFor []uuid.UUID        // what waits was looked through for these
	restedFor  []string           // routes that were paused at the last try
	named      map[string]bool    // routes that are shown by name

	following  []casualty // letters to be written
	followed   []unwritten
	followSize int // of them in memory, in bytes

	steps    []step   // of the batch in hand
	left     []step   // of them, those that were not dealt with
	inHand   []uint64 // the tag of the item of a release that is being handed over, or none
	commit   uint64   // start of the commit whose text is position
	position string   // most transactions have many rows
	alarm    alarm

	words atomic.Pointer[words] // the operator's, as the checkpoint's goroutine read them
	heard chan struct{}         // they have changed
}

func newPipeline(began checkpoint, b *books, log *slog.Logger) *pipeline {
	p := &pipeline{
		books: b, began: began, lanes: newLanes(), releases: began.release, lastCursor: began.cursor, log: log, heard: make(chan struct{}, 1),
	}
	p.named = make(map[string]bool)
	p.words.Store(&words{})
	p.counted = func() int64 { return 0 }
	p.tell, p.holding, p.lend = func(State, error) {}, func(map[string]heldRoute) {}, func(int) {}
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
	spoil(batch)
	for i := range p.steps {
		if err := p.deal(ctx, &p.steps[i]); err != nil {
			return err
		}
		p.next = p.steps[i].at.after()
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
		if it.Commit != p.at.commit {
			p.at = place{commit: it.Commit}
		}
		p.unseen.add(it)
		s := step{it: it, at: p.at}
		p.at.ordinal++
		if p.hadEnded(&s) {
			continue
		}
		p.progress.Open(it.CommitTime)
		s.tag = p.progress.Read()
		p.steps = append(p.steps, s)
		if defect == defectConfirmEarly {
			_ = p.progress.End(s.tag, wayAcknowledged)
		}
	}
	p.left = p.steps
	p.owing += uint64(len(p.steps))
	p.metrics.read(len(p.steps))
	return nil
}

// hadEnded applies the resume rule. A control acts again until its transaction
// has ended, unless it waits: its letters were opened when the session began, and
// those that are out already are left out then.
func (p *pipeline) hadEnded(s *step) bool {
	switch {
	case s.at.commit < p.began.order:
		return true
	case s.it.Kind == cdc.KindControl && p.controls[s.it.Control.ID]:
		return true
	case !s.at.before(p.began.upto):
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
		dead, err := p.morgue.ended(ctx, s.id(), s.at.commit)
		if err != nil {
			return err
		}
		if dead {
			p.metrics.skipped(skippedByLetter)
			return p.end(s.tag, wayLetter)
		}
	}
	if p.leavesOut(s.it) {
		p.metrics.skipped(skippedByGap)
		return p.end(s.tag, waySkipped)
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
	return it.Kind == cdc.KindEvent && it.Bad == nil && p.covered.sees(it.Row.TxID)
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
	if p.word().skips(s.id()) {
		if done, err := p.skip(ctx, s, ""); done || err != nil {
			return err
		}
	}
	switch {
	case s.it.Replay == nil && p.morgue.parked(s.it.Row, s.at.commit):
		return p.follow(ctx, s)
	case s.it.Bad != nil:
		return p.poison(ctx, s, classBadRow, s.it.Bad)
	}
	if why, ok := p.refused[s.id()]; ok {
		return p.poison(ctx, s, classRecord, errors.New(why))
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
		return p.poison(ctx, s, classRecord, err)
	case errors.Is(err, publisher.ErrPartitions):
		return p.stand(ctx, err)
	}
	return err
}

// rests returns why an event waits for the operator who paused its route; nil
// when it does not.
func (p *pipeline) rests(ev publisher.Event) *publisher.RouteError {
	if paused := p.word().routes; len(paused) > 0 {
		return p.routing.rests(ev, paused)
	}
	return nil
}

func (p *pipeline) event(s *step) publisher.Event {
	if commit := uint64(s.at.commit); commit != p.commit || p.position == "" {
		p.commit, p.position = commit, positionText(s.at.commit)
	}
	ev := publisher.Event{Row: s.it.Row, Tag: s.tag, Position: p.position, RepairID: s.repair}
	if r := s.it.Replay; r != nil {
		ev.Topic = r.Topic
		ev.Replay = &record.Replay{ID: r.ID, Mode: record.ReplayMode(r.Mode), Group: r.Group}
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
	if err := p.morgue.settle(ctx, p.mode.durable().order); err != nil {
		return err
	}
	if !p.word().paused {
		return nil
	}
	p.log.WarnContext(ctx, "paused by an operator")
	p.tell(StatePaused, nil)
	for p.word().paused {
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
	p.tell(StateStreaming, nil)
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
func (p *pipeline) cut() checkpoint {
	return checkpoint{order: p.progress.Position(), reach: p.reach(), mended: p.mended, letters: p.counted()}
}

// hear takes the operator's words. Safe for concurrent use.
func (p *pipeline) hear(now words) {
	p.words.Store(&now)
	select {
	case p.heard <- struct{}{}:
	default:
	}
}

func (p *pipeline) word() *words { return p.words.Load() }

// explain adds the event to an error that ends the session.
func explain(s *step, err error) error {
	if errors.Is(err, publisher.ErrRecord) {
		return fmt.Errorf("event %s (aggregate %s, commit at %s) cannot be published: %w", keyOf(s.it), clip(s.it.Row.AggregateType, maxName), s.at.commit, err)
	}
	return err
}

// maxName bounds a name of a row in logs and errors: a direct INSERT may make it as
// long as it likes.
const maxName = 128

// keyOf is the key as logs and errors show it.
func keyOf(it *cdc.Item) string { return clip(it.Row.Namespace, maxName) + ":" + it.Row.ID.String() }

// nameOf is what a command that we print calls an event: its key or, when that is none,
// by which the command would refuse it, the UUID alone.
func nameOf(namespace string, id uuid.UUID) string {
	key, err := outbox.KeyFrom(namespace, id, time.Now(), outbox.NoSkewLimit)
	if err != nil {
		return id.String()
	}
	return key.String()
}
