package relay

import (
	"context"
	"sync"
	"time"

	"github.com/onceward/onceward/relay/internal/beginning"
	"github.com/onceward/onceward/relay/internal/retry"
)

// opening bounds the steps of a session's start, and tells which one is under
// way. A server that accepts and never answers would hold the relay for ever.
type opening struct {
	limit  time.Duration
	tell   func(kind, step string)
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	timer *time.Timer
}

// newOpening returns a context that ends when a step takes longer than the limit.
func newOpening(ctx context.Context, limit time.Duration, tell func(kind, step string)) (context.Context, *opening) {
	ctx, cancel := context.WithCancelCause(ctx)
	return ctx, &opening{limit: limit, tell: tell, cancel: cancel}
}

// step begins a step for which PostgreSQL is asked; the one before has ended.
func (o *opening) step(what string) {
	o.begin(WaitPostgres, what)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.timer = time.AfterFunc(o.limit, func() { o.cancel(&retry.NoAnswerError{Step: what, Limit: o.limit}) })
}

// unbounded begins a step that may take as long as it takes: it waits for
// transactions that are open, or has limits of its own.
func (o *opening) unbounded(kind, what string) { o.begin(kind, what) }

func (o *opening) begin(kind, what string) {
	o.stop()
	o.tell(kind, what)
}

func (o *opening) stop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.timer != nil {
		o.timer.Stop()
		o.timer = nil
	}
}

// done ends the start, and returns the error that counts.
func (o *opening) done(ctx context.Context, err error) error {
	o.stop()
	if late, ok := context.Cause(ctx).(*retry.NoAnswerError); ok && err != nil { //nolint:errorlint // the cause is ours, and not wrapped
		err = late
	}
	o.cancel(nil)
	return err
}

// told is the part of it that a beginner has.
func (o *opening) told() beginning.Told {
	return beginning.Told{
		Asks:  func(what string) { o.unbounded(WaitPostgres, what) },
		Waits: func(what string) { o.unbounded(WaitSlot, what) },
		Names: func(what string) { o.tell(WaitSlot, what) },
	}
}
