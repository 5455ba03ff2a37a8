package kafkaproxy

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Action is what happens to a request that a [Fault] meets.
type Action int

// The actions.
const (
	// Hold keeps the request, and what comes behind it on its connection, until
	// [Injected.Release]. The client waits, or gives up; then the request still
	// reaches the broker.
	Hold Action = iota
	// Late keeps the request and resets its client at once. The client goes on
	// over other connections, and at [Injected.Release] the broker gets the
	// request as the network would deliver a packet that was long on its way.
	Late
	// DropReply lets the broker do its work, and resets the client when the
	// broker has answered: the client cannot know the outcome.
	DropReply
	// Break resets the connection in the place of passing the request on.
	Break
)

// String returns the action's name.
func (a Action) String() string {
	if names := [...]string{"hold", "late", "drop-reply", "break"}; a >= 0 && int(a) < len(names) {
		return names[a]
	}
	return fmt.Sprintf("Action(%d)", int(a))
}

// Fault says what happens to which requests, on all links of a network.
type Fault struct {
	// Key of the requests.
	Key Key
	// Action that meets them.
	Action Action
	// Times is how many requests it meets; 0 is every one until Release.
	Times int
	// Client narrows it to requests of this client id; empty is any.
	Client string
}

// ErrLost is why [Injected.Deliver] fails: a connection over which a held
// request was to be delivered has ended, for example because its broker did.
var ErrLost = errors.New("held request lost with its connection")

// Injected is a [Fault] at work. Its methods may be called at any time.
type Injected struct {
	fault Fault

	mu       sync.Mutex
	left     int // requests that it may still meet; -1 is no bound
	hits     int
	held     []*held
	changed  chan struct{} // closed at the next hit, and replaced
	released chan struct{}
	over     bool
}

// held is a request that waits for Release.
type held struct {
	done chan struct{} // the broker has answered, or never will
	err  error         // set before done is closed
}

func newInjected(f Fault) *Injected {
	left := f.Times
	if left <= 0 {
		left = -1
	}
	return &Injected{fault: f, left: left, changed: make(chan struct{}), released: make(chan struct{})}
}

// Hits returns how many requests it has met: held, broken, or answered without
// the answer having reached the client.
func (i *Injected) Hits() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.hits
}

// Wait blocks until it has met n requests, or ctx ends.
func (i *Injected) Wait(ctx context.Context, n int) error {
	for {
		i.mu.Lock()
		hits, changed := i.hits, i.changed
		i.mu.Unlock()
		if hits >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %d requests with key %d: %d came: %w", n, i.fault.Key, hits, ctx.Err())
		}
	}
}

// Release ends the fault and lets go what it holds, without waiting. More
// calls do nothing.
func (i *Injected) Release() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.over {
		i.over = true
		i.left = 0
		close(i.released)
	}
}

// Deliver is [Injected.Release], and waits until the broker has answered every
// request that was held, or ctx ends. The error matches [ErrLost] when one of
// them could not be delivered.
func (i *Injected) Deliver(ctx context.Context) error {
	i.Release()
	i.mu.Lock()
	all := i.held
	i.mu.Unlock()
	var errs []error
	for _, h := range all {
		select {
		case <-h.done:
			errs = append(errs, h.err)
		case <-ctx.Done():
			return fmt.Errorf("wait for the answer to a held request with key %d: %w", i.fault.Key, ctx.Err())
		}
	}
	return errors.Join(errs...)
}

// ended reports whether it was released.
func (i *Injected) ended() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.over
}

// take reports whether the fault meets the request, and counts it down.
func (i *Injected) take(r request) bool {
	if r.key != i.fault.Key || i.fault.Client != "" && i.fault.Client != r.client {
		return false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.left == 0 {
		return false
	}
	if i.left > 0 {
		i.left--
	}
	return true
}

// hit counts a request that was met.
func (i *Injected) hit() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.hits++
	close(i.changed)
	i.changed = make(chan struct{})
}

// keep registers a request that is held, and counts it.
func (i *Injected) keep() *held {
	h := &held{done: make(chan struct{})}
	i.mu.Lock()
	i.held = append(i.held, h)
	i.mu.Unlock()
	i.hit()
	return h
}

func (h *held) end(err error) {
	h.err = err
	close(h.done)
}
