package stream

import (
	"context"
	"time"
)

// alarm is a context that ends at a time, kept for as long as that time is not
// too late: most waits for the stream end before.
type alarm struct {
	ctx    context.Context //nolint:containedctx // it is the alarm
	cancel context.CancelFunc
	at     time.Time
}

// set returns a context that ends at the time or before.
func (a *alarm) set(ctx context.Context, at time.Time) context.Context {
	if a.ctx != nil && a.ctx.Err() == nil && !at.Before(a.at) {
		return a.ctx
	}
	a.stop()
	a.ctx, a.cancel = context.WithDeadline(ctx, at)
	a.at = at
	return a.ctx
}

func (a *alarm) stop() {
	if a.cancel != nil {
		a.cancel()
	}
}
