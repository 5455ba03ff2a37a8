package saramagroup

import (
	"cmp"
	"context"
	"sync"
)

// How much one run does at most. What is left waits for the next.
const (
	redriveLimit = 1000
	redrivePart  = 20 // for which a message waits that is delivered cautiously
	recoverLimit = 100
)

// chore is work that no message asks for.
type chore struct {
	name string
	do   func(ctx context.Context) (done int, err error)
}

func (r *runner) chores() []chore {
	return []chore{
		{"redrive dead letters", r.redrive},
		{"recover fences", func(ctx context.Context) (int, error) { return r.handler.RecoverFences(ctx, recoverLimit) }},
		{"copy dead letters to their topic", r.sendLetters},
	}
}

// keepHouse starts the chores, each in a goroutine of its own, so that one which
// waits for somebody, such as a slow provider, holds up no other. They need no
// session with Kafka. What it returns ends them and waits; a letter or a fence in
// hand then is rolled back, or waits for its lease, and is taken again by somebody.
func (r *runner) keepHouse(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	for _, c := range r.chores() {
		work.Go(func() {
			for sleep(ctx, r.cfg.HousekeepingInterval) {
				r.tidy(ctx, c)
			}
		})
	}
	return func() {
		cancel()
		work.Wait()
	}
}

// tidy does a chore once. The next time is an interval after its end.
func (r *runner) tidy(ctx context.Context, c chore) {
	done, err := c.do(ctx)
	if err != nil && ctx.Err() == nil {
		r.log.Warn("housekeeping failed; it will be tried again", "part", c.name, "done", done, "error", err, "retry_in", r.cfg.HousekeepingInterval)
	}
}

// redrive handles letters again, part by part.
func (r *runner) redrive(ctx context.Context) (total int, err error) {
	for total < redriveLimit {
		done, failed := r.redrivePart(ctx)
		total, err = total+done, cmp.Or(err, failed)
		if done < redrivePart {
			break
		}
	}
	return total, err
}

// redrivePart does so while no message is delivered cautiously: were it a letter that
// kills the process, the message would be blamed as well.
func (r *runner) redrivePart(ctx context.Context) (done int, err error) {
	select {
	case r.suspect <- struct{}{}:
		defer func() { <-r.suspect }()
		return r.handler.Redrive(ctx, redrivePart)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}
