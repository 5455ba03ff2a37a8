package cdc

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
)

// queue hands items from the reader's goroutine to the caller of [Reader.Next].
// It is bounded by bytes, not by rows: what was taken counts until the next
// take, because until then the caller still holds it. One item is accepted by
// an empty queue whatever its size, so that a huge row cannot block for ever.
type queue struct {
	limit int

	mu    sync.Mutex
	items []Item
	bytes int   // of items
	taken int   // bytes of the batch that the caller holds
	lent  int   // bytes that something else of the caller's takes
	err   error // set when the stream has ended

	pushed atomic.Bool // something since the last wake

	ready chan struct{} // items have come, or the end
	space chan struct{} // bytes were released
}

func newQueue(limit int) *queue {
	return &queue{limit: limit, ready: make(chan struct{}, 1), space: make(chan struct{}, 1)}
}

// push adds the item unless the queue is full. Whoever waits for it learns of it by wake.
func (q *queue) push(it Item) bool {
	size := it.size()
	q.mu.Lock()
	if held := q.bytes + q.taken; held > 0 && held+size > q.limit-q.lent {
		q.mu.Unlock()
		return false
	}
	q.items = append(q.items, it)
	q.bytes += size
	q.mu.Unlock()
	q.pushed.Store(true)
	return true
}

// wake has take return what was pushed. It is called before the goroutine that pushes waits for
// anything: so what came together is taken together.
func (q *queue) wake() {
	if q.pushed.Load() && q.pushed.Swap(false) {
		signal(q.ready)
	}
}

// lend makes the queue smaller by what something else of its caller's takes, down to
// a quarter of it.
func (q *queue) lend(bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lent = min(bytes, q.limit/4*3)
	signal(q.space)
}

// take waits for items and returns all there are, in order. The slice it was
// given is emptied and used again for the next ones.
func (q *queue) take(ctx context.Context, used []Item) ([]Item, error) {
	clear(used)
	for {
		q.mu.Lock()
		if q.taken > 0 {
			q.taken = 0
			signal(q.space)
		}
		if len(q.items) > 0 {
			batch := q.items
			q.items, q.taken, q.bytes = used[:0], q.bytes, 0
			q.mu.Unlock()
			return batch, nil
		}
		err := q.err
		q.mu.Unlock()
		if err != nil {
			return nil, err
		}
		select {
		case <-q.ready:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// close ends the stream: take returns err, or io.EOF for nil, once everything
// was taken.
func (q *queue) close(err error) {
	if err == nil {
		err = io.EOF
	}
	q.mu.Lock()
	q.err = err
	q.mu.Unlock()
	signal(q.ready)
}

// held returns the bytes that the queue and its caller hold.
func (q *queue) held() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes + q.taken
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
