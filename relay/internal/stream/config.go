package stream

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"

	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/letters"
	"github.com/onceward/onceward/relay/internal/snapshot"
	"github.com/onceward/onceward/relay/internal/state"
)

// Refused are events, replays and letters that a broker has refused, and why, until
// a letter says so.
type Refused map[uuid.UUID]string

// Learn takes them from the error that ended a session, and reports whether it is
// news.
func (r *Refused) Learn(err error) (news bool) {
	var why *publisher.RefusedError
	if !errors.As(err, &why) {
		return false
	}
	if *r == nil {
		*r = make(Refused)
	}
	_, known := (*r)[why.ID]
	(*r)[why.ID] = why.Error()
	return !known
}

// Hooks are how a pump tells its session what it does.
type Hooks struct {
	Tell    func(now Phase, why error)        // what the health pages show
	Holding func(routes map[string]HeldRoute) // likewise, by route
	Lend    func(bytes int)                   // of the queue, to what is held
}

// Config is what a session gives its pump.
type Config struct {
	Start    ledger.Checkpoint // what had ended when the session began
	Nonce    uint64            // of the markers that are its own
	State    *state.State      // of the pump's connection
	Letters  *letters.Store
	Waiting  *Table
	Routing  *Routing
	Covered  snapshot.Visible // what the stream leaves out
	Repairs  []Gap            // to be published before the stream
	Refused  Refused
	Observer Observer
	Hooks    Hooks
	Log      *slog.Logger
}

// New lets wait what waited before. Its mode is chosen next.
func New(ctx context.Context, conf Config) (*Pump, error) {
	held, controls, err := conf.Waiting.load(ctx)
	if err != nil {
		return nil, err
	}
	p := newPump(conf.Start, newProgress(&conf.Start, conf.Nonce, conf.Observer), conf.Log)
	p.letters.store, p.held.keeper, p.reading.controls = ownLetters{conf.Letters, &p.writing}, conf.Waiting, controls
	p.reading.rows, p.gaps = outboxRows{conf.State}, &gapRows{pumps: conf.State}
	p.routing, p.reading.covered, p.repairs = conf.Routing, conf.Covered, conf.Repairs
	p.letters.refused, p.Hooks = conf.Refused, conf.Hooks
	p.reading.counted = func() int64 { return conf.State.Written }
	p.counts.ParkedNow(p.letters.store.ParkedCount())
	p.held.takeUp(held)
	return p, nil
}

// Idempotent has Kafka acknowledge every event, to [Pump.Acknowledged]. saved is the
// checkpoint in PostgreSQL.
func (p *Pump) Idempotent(sink Flusher, saved *atomic.Pointer[ledger.Checkpoint]) {
	p.sink, p.mode = sink, &idempotent{progress: p.progress, sink: sink, watch: p.watch, saved: saved}
}

// Acknowledged is the callback of the idempotent sink.
func (p *Pump) Acknowledged(tags []uint64) {
	events, letters := p.acknowledged(tags)
	p.counts.Published(events, letters, p.watch.ended(tags...))
}

// Transactions bound those of exactly-once mode.
type Transactions struct {
	Interval time.Duration
	Longest  time.Duration // in the place of Interval, while the relay is behind
	MaxBytes int64
	Timeout  time.Duration                            // the coordinator's patience with one
	Room     *int64                                   // bytes that one may have, below MaxBytes; outlives sessions
	Bound    ledger.Checkpoint                        // timeline, session and gap of every checkpoint
	Segment  pglogrepl.LSN                            // bytes of a segment of the server's log
	Tick     func(ctx context.Context) (int64, error) // raises the one in the database, durably
	Grace    time.Duration                            // for a commit that the end of the session meets
}

// ExactlyOnce commits events and checkpoint in one Kafka transaction.
func (p *Pump) ExactlyOnce(tx Transactional, conf Transactions) {
	if conf.Room == nil {
		conf.Room = new(int64)
	}
	conf.begins()
	watched := watchedTransactions{tx, p.watch, conf.long()}
	m := &exactlyOnce{
		progress: p.progress, Transactions: conf, tx: watched, cut: p.reading.cut,
		before:    p.held.write,
		committed: time.Now(), idle: ledger.Idle{Segment: conf.Segment, Owed: true},
	}
	m.known.Position, m.known.Reach = p.reading.began.Order, p.reading.began.Reach
	m.next = m.committed.Add(conf.Interval)
	p.watch.together = true
	p.sink, p.mode = watched, m
}

// commands are the operator's, as the checkpoint's goroutine read them last.
type commands struct {
	last    atomic.Pointer[state.Commands]
	changed chan struct{}
}

func newCommands() *commands {
	c := &commands{changed: make(chan struct{}, 1)}
	c.last.Store(&state.Commands{})
	return c
}

// SetCommands takes the operator's, as they are now. Safe for concurrent use.
func (c *commands) SetCommands(now state.Commands) {
	c.last.Store(&now)
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Commands returns the operator's, as they are now.
func (c *commands) Commands() *state.Commands { return c.last.Load() }
