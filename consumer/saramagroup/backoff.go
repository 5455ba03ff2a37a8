package saramagroup

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff is a growing, jittered pause. Members that failed together must not
// come back together.
type backoff struct {
	min, max time.Duration
	next     time.Duration // before jitter; 0 at the beginning
}

// reset starts again from the shortest pause.
func (b *backoff) reset() { b.next = 0 }

// step returns the next pause: between a half of and the whole of a time that
// doubles from min to max.
func (b *backoff) step() time.Duration {
	switch {
	case b.next == 0:
		b.next = b.min
	case b.next > b.max/2:
		b.next = b.max
	default:
		b.next *= 2
	}
	return b.next/2 + rand.N(b.next/2+1) //nolint:gosec // jitter is no secret
}

// sleep waits for d and reports whether ctx is still alive then.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
