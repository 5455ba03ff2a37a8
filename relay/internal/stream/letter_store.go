package stream

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/letters"
)

// letterStore keeps what cannot be published. [letters.Store] is the one, over the pump's
// own connection.
type letterStore interface {
	Ended(ctx context.Context, id uuid.UUID, commit pglogrepl.LSN) (bool, error)
	Parked(row *outbox.Row, commit pglogrepl.LSN) bool
	ParkedCount() int
	// Around returns where the letters stand that hold the event's aggregate: the
	// newest that is older than the event, by seq, and the oldest of all; 0 without any.
	Around(ctx context.Context, row *outbox.Row) (last, oldest pglogrepl.LSN, err error)
	// Admit parks an event's aggregate, if that is what its letter does; the
	// letter itself is written later, by park. It refuses one aggregate too many.
	Admit(dead *letters.Dead) *publisher.RouteError
	Write(ctx context.Context, dead ...letters.Dead) error
	// Skip reports whether it was done: the command may have been taken back.
	Skip(ctx context.Context, dead letters.Dead) (done bool, err error)
	// LaneOf returns what a retry of one letter waits behind; zero without such
	// a letter.
	LaneOf(ctx context.Context, id uuid.UUID) (ledger.Lane, error)
	// Apply returns nil when nothing is to be published.
	// What one that waited releases is settled when the control is forgotten.
	Apply(ctx context.Context, c *cdc.Control, bad error, at pglogrepl.LSN, waited bool) (pages, error)
	// Reopen takes back what a control released, from one of its letters on.
	Reopen(ctx context.Context, c *cdc.Control, from uint32) error
	Settle(ctx context.Context, checkpoint pglogrepl.LSN) error
}

// pages are the letters that a control has released, in order. [letters.Release] are
// the ones.
type pages interface {
	Next(ctx context.Context) ([]*letters.Letter, error)
	// Again: the control had acted in an earlier session.
	Again() bool
	Fail(ctx context.Context, failed *letters.Letter, class, cause string) error
	// Skip gives one of them up, because an operator said so; not done: it was
	// taken back.
	Skip(ctx context.Context, l *letters.Letter) (done bool, err error)
}

// ownLetters is [letters.Store] as a letterStore, which says since when it writes.
type ownLetters struct {
	*letters.Store
	*writing
}

// writing knows since when a letter is being written.
type writing struct{ since atomic.Int64 } // in Unix nanoseconds; 0: none is

// Writing returns since when a letter is being written; zero: none is. Safe for
// concurrent use.
func (w *writing) Writing() time.Time {
	if since := w.since.Load(); since != 0 {
		return time.Unix(0, since)
	}
	return time.Time{}
}

func (w *writing) timed() (end func()) {
	w.since.Store(time.Now().UnixNano())
	return func() { w.since.Store(0) }
}

// Write implements letterStore.
func (m ownLetters) Write(ctx context.Context, dead ...letters.Dead) error {
	defer m.timed()()
	return m.Store.Write(ctx, dead...)
}

// Skip implements letterStore.
func (m ownLetters) Skip(ctx context.Context, dead letters.Dead) (bool, error) {
	defer m.timed()()
	return m.Store.Skip(ctx, dead)
}

// Apply implements letterStore.
func (m ownLetters) Apply(ctx context.Context, c *cdc.Control, bad error, at pglogrepl.LSN, waited bool) (pages,
	error) {
	defer m.timed()()
	released, err := m.Store.Apply(ctx, c, bad, at, waited)
	if released == nil {
		return nil, err
	}
	return released, err
}
