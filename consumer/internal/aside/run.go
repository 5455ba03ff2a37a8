package aside

import (
	"context"
	"errors"
	"sync"
	"time"
)

var (
	// ErrExited: a function has ended its goroutine.
	ErrExited = errors.New("it has ended its goroutine (runtime.Goexit)")
	// ErrLeft is what [Turn.Call] returns when its function has returned too late.
	ErrLeft = errors.New("nobody waits for it any more")
)

// Turn is a goroutine in which functions are called, one after the other, while it is watched
// that each returns.
type Turn struct {
	grace time.Duration

	mu     sync.Mutex
	inside context.Context //nolint:containedctx // of the function that runs; nil: none does
	ends   time.Time       // when it is to have returned
	left   bool            // it had not
}

// Run calls work in another goroutine and waits for it; but for no function of [Turn.Call]
// for longer than grace after that one's context, or ctx, has ended. That is limit after the
// function began, at most. When it waits no more, left is closed when the function returns, and err
// is the cause of its context's end; what work has is still its own then, until it has
// ErrLeft. Otherwise left is nil and err is work's, or ErrExited.
func Run(ctx context.Context, limit, grace time.Duration, work func(*Turn) error) (left <-chan struct{}, err error) {
	return run(Go, ctx, limit, grace, work)
}

// run is Run with a function that calls another aside.
func run(aside func(func()), ctx context.Context, limit, grace time.Duration, //nolint:revive // as in Run
	work func(*Turn) error) (left <-chan struct{}, err error) {
	t := &Turn{grace: grace}
	done := make(chan error, 1)
	aside(func() {
		err := ErrExited
		defer func() { done <- err }()
		err = work(t)
	})
	over := ctx.Done()
	look := time.NewTimer(limit + grace)
	defer look.Stop()
	for {
		select {
		case err := <-done:
			return nil, err
		case <-over:
			over, limit = nil, 0
			look.Reset(t.hurry())
		case <-look.C:
			wait, cause := t.overdue()
			if wait <= 0 {
				gone := make(chan struct{})
				go func() {
					defer close(gone)
					<-done //nolint:errcheck // nobody waits for it any more
				}()
				return gone, cause
			}
			look.Reset(min(wait, limit+grace))
		}
	}
}

// Call calls f, whose context is ctx. With ErrLeft nothing may be touched any more.
func (t *Turn) Call(ctx context.Context, f func() error) error {
	ends := time.Now()
	if deadline, ok := ctx.Deadline(); ok && ctx.Err() == nil {
		ends = deadline
	}
	t.mu.Lock()
	t.inside, t.ends = ctx, ends.Add(t.grace)
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

// hurry is told that the context of all functions has ended.
func (t *Turn) hurry() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if soon := time.Now().Add(t.grace); t.ends.After(soon) {
		t.ends = soon
	}
	return t.grace
}

// overdue returns how long to wait for the function that runs; not at all: it is left behind.
func (t *Turn) overdue() (wait time.Duration, cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.inside == nil {
		return 1<<63 - 1, nil
	}
	wait = time.Until(t.ends)
	t.left = wait <= 0
	return wait, context.Cause(t.inside)
}
