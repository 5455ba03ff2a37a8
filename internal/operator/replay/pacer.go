package replay

import (
	"context"
	"time"
)

// pacer holds a rate. Time that was lost is not made up for by a burst.
type pacer struct {
	rate int // a second
	next time.Time
}

// wait returns when n more may be done, or the context's error.
func (p *pacer) wait(ctx context.Context, n int) error {
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	due := p.next
	p.next = due.Add(time.Duration(float64(n) / float64(p.rate) * float64(time.Second)))
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}
