// Package rest remembers which topics have refused what is no record's fault, and rest for
// a while, so that others go on: only a record finds out whether that has passed.
package rest

import (
	"sync"
	"sync/atomic"
	"time"
)

// Pause is for how long a topic rests.
const Pause = time.Minute

// Refusal is what a topic has answered.
type Refusal struct {
	At    time.Time // the last time
	Cause error
	Times int // in a row, less than two pauses apart
}

// Topics are those that have refused something of late. The zero value has none. It is safe
// for concurrent use, and costs nothing while it has none.
type Topics struct {
	mu   sync.Mutex
	last map[string]Refusal
	any  atomic.Bool // last is not empty
}

// Refused notes that a topic has refused something.
func (t *Topics) Refused(topic string, cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last == nil {
		t.last = make(map[string]Refusal)
	}
	r := Refusal{time.Now(), cause, 1}
	if before, known := t.last[topic]; known && r.At.Sub(before.At) < 2*Pause {
		r.Times += before.Times
	}
	t.last[topic] = r
	t.any.Store(true)
}

// Of returns the last refusal of a topic, if it is younger than the pause.
func (t *Topics) Of(topic string) (r Refusal, rests bool) {
	if !t.any.Load() {
		return r, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r, known := t.last[topic]
	age := time.Since(r.At)
	if known && age >= 2*Pause {
		delete(t.last, topic)
		t.any.Store(len(t.last) > 0)
	}
	return r, known && age < Pause
}
