package publisher

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/publisher/internal/produce"
)

// inflight counts what was handed over and has not ended, and wakes those who
// wait for it to fall. The hot path takes no lock while nobody waits.
type inflight struct {
	events  atomic.Int64
	bytes   atomic.Int64
	waiting atomic.Int32
	nudge   func() // somebody begins to wait

	mu      sync.Mutex
	changed chan struct{} // closed at the next fall, and replaced
}

func newInflight(nudge func()) *inflight {
	return &inflight{nudge: nudge, changed: make(chan struct{})}
}

// empty reports whether everything has ended.
func (f *inflight) empty() bool { return f.events.Load() == 0 }

func (f *inflight) add(bytes int64) {
	f.bytes.Add(bytes)
	f.events.Add(1)
}

// done takes back what has ended. Waiters announce themselves before they look
// and done looks for them after it has changed the counts, so none is missed.
func (f *inflight) done(events int, bytes int64) {
	f.bytes.Add(-bytes)
	f.events.Add(-int64(events))
	f.wake()
}

func (f *inflight) wake() {
	if f.waiting.Load() == 0 {
		return
	}
	f.mu.Lock()
	close(f.changed)
	f.changed = make(chan struct{})
	f.mu.Unlock()
}

// errEnded: what bounds a wait has ended.
var errEnded = errors.New("waited for long enough")

// wait returns nil once ok holds. It returns ctx's error when ctx ends first,
// ErrFailed or ErrClosed when that channel is closed.
func (f *inflight) wait(ctx context.Context, failed, quit <-chan struct{}, ok func() bool) error {
	err := f.until(ctx.Done(), failed, quit, ok)
	if errors.Is(err, errEnded) {
		return ctx.Err()
	}
	return err
}

// until is wait with a channel in the place of ctx.
func (f *inflight) until(ended, failed, quit <-chan struct{}, ok func() bool) error {
	if ok() {
		return nil
	}
	f.waiting.Add(1)
	defer f.waiting.Add(-1)
	f.nudge()
	for {
		f.mu.Lock()
		changed := f.changed
		f.mu.Unlock()
		if ok() {
			return nil
		}
		select {
		case <-changed:
		case <-failed:
			return ErrFailed
		case <-quit:
			return ErrClosed
		case <-ended:
			return errEnded
		}
	}
}

// grace returns a channel that is closed when Close waits no more for what is in
// flight, and a function that gives it up.
func grace() (over chan struct{}, stop func() bool) {
	over = make(chan struct{})
	return over, time.AfterFunc(closeGrace, func() { close(over) }).Stop
}

// ackBatch is the most tags that one call of the acknowledged function gets.
const ackBatch = 1024

// acked reports records that have been acknowledged. The caller has the tags before
// the counts fall, so that when Flush returns every acknowledgement has been reported.
func (p *Publisher) acked(first *produce.Record) {
	var bytes int64
	for r := first; r != nil; {
		following, ended := r.Next(), pendingOf(r)
		p.tags = append(p.tags, ended.tag)
		bytes += r.Cost
		ended.end()
		p.records.put(ended)
		if r = following; r == nil || len(p.tags) == ackBatch {
			p.acknowledged(p.tags)
			p.inflight.done(len(p.tags), bytes)
			p.tags, bytes = p.tags[:0], 0
		}
	}
}

// giveUp ends the publisher because of a record that was not taken, or what is left
// of it while it closes.
func (p *Publisher) giveUp(first *produce.Record, cause error) {
	if p.closing() {
		p.wire.Cut() // given up by Close, which is no failure
		return
	}
	if errors.Is(cause, sarama.ErrInvalidTimestamp) || errors.Is(cause, sarama.ErrUnknown) {
		p.settings.Memory.rests.Refused(first.Topic.Name, cause)
	}
	err := explain(pendingOf(first), cause, p.settings)
	if p.transactional {
		err = asFenced(err, cause)
	}
	p.fail(err)
}
