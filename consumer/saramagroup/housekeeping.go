package saramagroup

import (
	"context"
	"sync"
)

// How much one run does at most. What is left waits for the next.
const (
	redriveLimit = 1000
	recoverLimit = 100
)

// keepHouse starts the work that no message asks for, in a goroutine of its own:
// it needs no session with Kafka. What it returns ends the work and waits; a
// letter or a fence in hand then is rolled back, or waits for its lease, and is
// taken again by somebody.
func (r *runner) keepHouse(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() {
		for sleep(ctx, r.cfg.HousekeepingInterval) {
			r.tidy(ctx)
		}
	})
	return func() {
		cancel()
		work.Wait()
	}
}

// tidy is one run. A part that fails keeps no other from its turn.
func (r *runner) tidy(ctx context.Context) {
	parts := []struct {
		name string
		do   func() (int, error)
	}{
		{"redrive dead letters", func() (int, error) { return r.handler.Redrive(ctx, redriveLimit) }},
		{"recover fences", func() (int, error) { return r.handler.RecoverFences(ctx, recoverLimit) }},
		{"copy dead letters to their topic", func() (int, error) { return r.sendLetters(ctx) }},
	}
	for _, part := range parts {
		done, err := part.do()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			r.log.Warn("housekeeping failed; it will be tried again", "part", part.name, "done", done, "error", err, "retry_in", r.cfg.HousekeepingInterval)
		}
	}
}
