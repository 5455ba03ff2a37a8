package memory

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// Life is a partition of a topic, in one of that topic's lives.
type Life struct {
	Topic     string
	ID        uuid.UUID
	Partition int32
}

// Marks are those that were last read or saved, which a save demands at least.
type Marks struct {
	mu sync.Mutex
	of map[Life]int64
}

// Set is for what was read: what is not among it is not there.
func (m *Marks) Set(read map[Life]int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of = read
}

// Raise is for what was saved, once anything was read.
func (m *Marks) Raise(at Life, high int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known, ok := m.of[at]; m.of != nil && (!ok || known < high) {
		m.of[at] = high
	}
}

// Least returns what a mark must at least be; false: it need not be there.
func (m *Marks) Least(at Life) (high int64, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	high, known = m.of[at]
	return high, known
}

// Reads are the latest event times that are known to have been read, of each partition
// of a topic. A floor passes no time of which another partition is a window behind, so
// that each is judged by its own.
type Reads struct {
	mu sync.RWMutex
	of map[partitionOfTopic]time.Time
}

type partitionOfTopic struct {
	topic     string
	partition int32
}

// Raise lifts the time of a partition; it never lowers it.
func (r *Reads) Raise(topic string, partition int32, at time.Time) {
	if !at.After(r.Latest(topic, partition)) {
		return
	}
	key := partitionOfTopic{topic, partition}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = make(map[partitionOfTopic]time.Time)
	}
	if at.After(r.of[key]) {
		r.of[key] = at
	}
}

// Latest is zero when nothing is known.
func (r *Reads) Latest(topic string, partition int32) time.Time {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.of[partitionOfTopic{topic, partition}]
}

// Instant is an event time in milliseconds that is only raised, such as stream time as
// far as a process has seen it.
type Instant struct{ ms atomic.Int64 }

// Raise lifts it; it never lowers it.
func (i *Instant) Raise(at time.Time) {
	for {
		known := i.ms.Load()
		if at.IsZero() || at.UnixMilli() <= known || i.ms.CompareAndSwap(known, at.UnixMilli()) {
			return
		}
	}
}

// Get returns it; false, and 1970, when it is not known.
func (i *Instant) Get() (at time.Time, known bool) {
	ms := i.ms.Load()
	return time.UnixMilli(ms), ms != 0
}

// Latest returns the later one of two instants. It is pure.
func Latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
