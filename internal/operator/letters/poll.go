package letters

import (
	"context"
	"slices"
	"time"

	"github.com/onceward/onceward/internal/operator/states"
)

// pollEvery is the pause between two looks at the letters.
const pollEvery = 200 * time.Millisecond

// poll looks, again and again, until nothing is pending or the time is over.
func poll(ctx context.Context, limit time.Duration, look func() (pending bool, err error)) error {
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

// wentWrong tells that something failed, or waits longer than it was waited for.
func wentWrong(outcomes []string, waited bool) bool {
	return slices.Contains(outcomes, states.OutcomeFailed) || waited && slices.Contains(outcomes, states.OutcomePending)
}
