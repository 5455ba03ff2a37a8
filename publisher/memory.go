package publisher

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// clockRest is for how long a topic rests that has refused our clock.
const clockRest = time.Minute

// Memory is what a process remembers of its publishers: one is given to each in
// turn, by [Config].Memory. Its zero value remembers nothing yet. It is safe for
// concurrent use.
type Memory struct {
	mu         sync.Mutex
	partitions map[string]int32     // by which a topic's keys were placed last
	clocks     map[string]time.Time // when a topic refused a timestamp of ours
	created    int                  // topics made
	identities map[string]*identity // of the topics that were written to
	remade     []RemadeTopic        // and not told of yet

	resting atomic.Bool // clocks is not empty
}

// count returns the partition count by which the keys of a topic were placed
// last; 0 when no event was ever placed.
func (m *Memory) count(topic string) int32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.partitions[topic]
}

func (m *Memory) placeBy(topic string, partitions int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.partitions == nil {
		m.partitions = make(map[string]int32)
	}
	m.partitions[topic] = partitions
}

// reserve takes up to n of the topics that may still be made.
func (m *Memory) reserve(n, limit int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n = max(0, min(n, limit-m.created))
	m.created += n
	return n
}

// giveBack returns reserved topics that were not made.
func (m *Memory) giveBack(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.created -= n
}

// refuseClock notes that a topic refused a timestamp of ours.
func (m *Memory) refuseClock(topic string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.clocks == nil {
		m.clocks = make(map[string]time.Time)
	}
	m.clocks[topic] = time.Now()
	m.resting.Store(true)
}

// clock returns why a topic rests that has refused our clock, until it is to be
// tried again. No broker tells its time: only a record finds out.
func (m *Memory) clock(topic string) *RouteError {
	if !m.resting.Load() {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	at, refused := m.clocks[topic]
	if !refused {
		return nil
	}
	if time.Since(at) >= clockRest {
		delete(m.clocks, topic)
		m.resting.Store(len(m.clocks) > 0)
		return nil
	}
	return &RouteError{
		Route: topic, Topic: topic,
		Reason: fmt.Sprintf("has refused a record stamped %s by this relay's clock: the broker's clock is further from it than message.timestamp.after.max.ms and message.timestamp.before.max.ms of the topic allow",
			at.UTC().Format(time.RFC3339)),
		Cure: fmt.Sprintf("compare `date -u` here and at the brokers, and set the clock that is wrong; it is tried again by itself every %s", clockRest),
	}
}
