package operator

import (
	"context"
	"time"
)

// pollEvery is the pause between two looks at what is awaited.
const pollEvery = 200 * time.Millisecond

// Poll looks, again and again, until nothing is pending or the time is over; 0 looks
// once. It blocks until then, and ends early with ctx and with the first error.
func Poll(ctx context.Context, limit time.Duration, look func() (pending bool, err error)) error {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for over := limit == 0; ; {
		pending, err := look()
		if err != nil || !pending || over {
			return err
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			over = true
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
