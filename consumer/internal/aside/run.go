package aside

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

var (
	// ErrExited: a function has ended its goroutine.
	ErrExited = errors.New("it has ended its goroutine (runtime.Goexit)")
	// ErrLeft is what [Turn.Call] returns when its function has returned too late.
	ErrLeft = errors.New("nobody waits for it any more")
)

// Do calls f in another goroutine, which it may end, and waits for it.
func Do(f func() error) error { return <-start(Go, f) }

// start has f called in another goroutine, which it may end, and returns where its error comes.
func start(aside func(func()), f func() error) <-chan error {
	done := make(chan error, 1)
	aside(func() {
		err := ErrExited
		defer func() { done <- err }()
		err = f()
	})
	return done
}

// grace is how long a function may take to return after its context has ended.
const grace = 5 * time.Second

// Watch watches functions, and counts those that do not return. Its zero value is ready.
type Watch struct{ stuck atomic.Int64 }

// Stuck returns how many functions run that nobody waits for any more.
func (w *Watch) Stuck() int { return int(w.stuck.Load()) }

// Turn is a goroutine in which functions are called, one after the other, while it is watched
// that each returns.
type Turn struct {
	mu     sync.Mutex
	inside context.Context //nolint:containedctx // of the function that runs; nil: none does
	until  time.Time       // when it is to have returned, once its context was seen to have ended
	left   bool            // it had not
}

// Call calls f, whose context is ctx and has a deadline. With ErrLeft nothing may be touched any more.
func (t *Turn) Call(ctx context.Context, f func() error) error {
	t.mu.Lock()
	t.inside, t.until = ctx, time.Time{}
	t.mu.Unlock()
	err := f()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inside = nil
	if t.left {
		return ErrLeft
	}
	return err
}

// Run calls work in another goroutine and waits for it; but for no function of [Turn.Call]
// for more than a few seconds after it has seen that the function's context, or ctx, has ended.
// Functions have limit at most. When it waits no more, late is true, and what work has is its own until
// it has ErrLeft. The error says so, or is work's, or ErrExited.
func (w *Watch) Run(ctx context.Context, limit time.Duration, work func(*Turn) error) (late bool, err error) {
	return w.run(ctx, limit, work, Go)
}

// run is Run with a function that calls another aside.
func (w *Watch) run(ctx context.Context, limit time.Duration, work func(*Turn) error,
	aside func(func())) (late bool, err error) {
	t := new(Turn)
	done := start(aside, func() error { return work(t) })
	over := ctx.Done()
	look := time.NewTimer(limit)
	defer look.Stop()
	for {
		select {
		case err := <-done:
			return false, err
		case <-over:
			over, limit = nil, time.Second
		case <-look.C:
		}
		wait, cause := t.look(limit, ctx.Err() != nil)
		if wait > 0 {
			look.Reset(wait)
			continue
		}
		w.stuck.Add(1)
		go func() {
			defer w.stuck.Add(-1)
			<-done //nolint:errcheck // nobody waits for it any more
		}()
		return true, fmt.Errorf("%w: it does not return %s after its context has ended, and is left behind; look for a call without ctx",
			cause, grace)
	}
}

// look returns when to look again at the function that runs; with 0 it is left behind, and cause is
// why its context ended. Over says that this is so for all. A process that stood still
// sees late that a context has ended, and the function has its time from then on.
func (t *Turn) look(limit time.Duration, over bool) (wait time.Duration, cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.inside == nil {
		return limit, nil
	}
	if t.inside.Err() == nil && !over {
		deadline, _ := t.inside.Deadline()
		return max(time.Until(deadline), time.Millisecond), nil // its timer is about to fire
	}
	if t.until.IsZero() {
		t.until = time.Now().Add(grace)
	}
	wait = max(time.Until(t.until), 0)
	t.left = wait == 0
	return wait, context.Cause(t.inside)
}
