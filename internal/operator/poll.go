package operator

import (
	"context"
	"time"
)

// pollEvery is the pause between two looks at what is awaited.
const pollEvery = 200 * time.Millisecond

// tellAfter is how long a wait goes without a word.
const tellAfter = 2 * time.Second

// PollTelling is [Poll], and calls tell once when it has waited for a while.
func PollTelling(ctx context.Context, limit time.Duration, tell func(), look func() (pending bool, err error)) error {
	began, told := time.Now(), false
	return Poll(ctx, limit, func() (bool, error) {
		pending, err := look()
		if pending && err == nil && !told && time.Since(began) >= tellAfter {
			told = true
			tell()
		}
		return pending, err
	})
}

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
