package consumer

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer/internal/memory"
)

// What fences keep, for tests outside the package.
var (
	EncodeEvent = encodeEvent
	DecodeEvent = decodeEvent
)

// Route says what a type was registered with.
func (r *Router) Route(eventType string) string {
	h, err := r.handlers.get(eventType)
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
	r.processor.letters.most, r.processor.letters.mostKeys = letters, keys
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
	r.processor.letters.clock = func() time.Time { return time.Now().Add(ahead) }
}

// FutureLetters is memory.FutureLetters.
const FutureLetters = memory.FutureLetters
