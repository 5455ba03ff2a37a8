package consumer

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// What fences keep, for tests outside the package.
var (
	EncodeEvent = encodeEvent
	DecodeEvent = decodeEvent
)

// Route says what a type was registered with.
func (r *Router) Route(eventType string) string {
	h, err := r.route(eventType)
	switch {
	case err != nil:
		return err.Error()
	case h.ignored:
		return "ignored"
	case h.fn != nil:
		return "func"
	case h.batch != nil:
		return "batch"
	}
	return "tx"
}

// Processor is the router's.
func (r *Router) Processor() *Processor { return r.processor }

// Bounds lowers what may be parked.
func (r *Router) Bounds(letters, keys int) {
	r.processor.parkedLetters, r.processor.parkedKeys = letters, keys
}

// BreakAfter lets the router's transactions fail from the nth commit on.
func (r *Router) BreakAfter(n int, err error) {
	commit := r.steps.commit
	r.steps.commit = func(ctx context.Context, tx pgx.Tx) error {
		if n--; n < 0 {
			return &infrastructureError{err}
		}
		return commit(ctx, tx)
	}
}

// SetClock puts the process's clock ahead, as a database whose clock is behind
// sees it.
func (r *Router) SetClock(ahead time.Duration) {
	r.processor.clock = func() time.Time { return time.Now().Add(ahead) }
}

// FutureLetters is futureLetters.
const FutureLetters = futureLetters

// Clocks is clocks, for the tests of the brake.
type Clocks struct {
	Event, Database, Process, Skew time.Duration
}

// Refusal is clocks.refusal, of times relative to one instant.
func (c Clocks) Refusal(full bool) error {
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	return clocks{at.Add(c.Event), at.Add(c.Database), at.Add(c.Process), c.Skew}.refusal(full)
}

// Brake is brake.
type Brake struct{ b brake }

// Full, Letter and Applied are those of brake.
func (b *Brake) Full() bool { return b.b.full() }
func (b *Brake) Letter()    { b.b.letter() }
func (b *Brake) Applied()   { b.b.applied() }
