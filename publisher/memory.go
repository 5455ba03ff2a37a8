package publisher

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/publisher/internal/produce"
	"github.com/onceward/onceward/publisher/internal/rest"
)

// Memory is what a process remembers of its publishers: one is given to each in
// turn, by [Config].Memory. Its zero value remembers nothing yet. It is safe for
// concurrent use.
type Memory struct {
	mu         sync.Mutex
	partitions map[string]int32     // by which a topic's keys were placed last
	rests      rest.Topics          // that have refused what is no record's fault
	created    int                  // topics made
	identities map[string]*identity // of the topics that were written to
	remade     []RemadeTopic        // and not told of yet
	throttle   produce.Throttle     // of the publisher that it was given to last
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

// rest returns why a topic rests, until it is to be tried again. A broker's failure that says nothing may pass with the
// producer, and makes it rest when it comes again.
func (m *Memory) rest(topic string, s *settings) *RouteError {
	r, rests := m.rests.Of(topic)
	clock := errors.Is(r.Cause, sarama.ErrInvalidTimestamp)
	if !rests || !clock && r.Times == 1 {
		return nil
	}
	at, again := r.At.UTC().Format(time.RFC3339), fmt.Sprintf("; it is tried again by itself every %s", rest.Pause)
	if clock {
		return &RouteError{Route: topic, Topic: topic,
			Reason: fmt.Sprintf("has refused a record stamped %s by this relay's clock: the broker's clock is further from it than message.timestamp.after.max.ms and message.timestamp.before.max.ms of the topic allow", at),
			Cure:   "compare `date -u` here and at the brokers, and set the clock that is wrong" + again,
		}
	}
	return &RouteError{Route: topic, Topic: topic,
		Reason: fmt.Sprintf("has refused records %d times in a row, the last time at %s, and does not say why (%v)", r.Times, at, r.Cause),
		Cure: fmt.Sprintf("the log of the partition's leader says it; `kafka-topics.sh --bootstrap-server %s --describe --topic {topic}` names leaders", s.Brokers[0]) + again +
			". If one event is to blame, `outboxctl list --state waiting` has it among the first of the topic, and `outboxctl skip --help` says how to give it up",
	}
}

// Trouble says what brokers answer about records of a topic that are sent again and again, and what to do about that if
// the publisher is configured so; empty: nothing. A throttle concerns all topics, and its end is returned, too.
func (m *Memory) Trouble(topic string, c *Config) (said string, throttled time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := m.identities[topic]; i != nil && i.of != nil {
		if refusal := i.of.route.Refusal.Load(); refusal != nil {
			said = fmt.Sprintf("%v: %s", *refusal, advise(*refusal, &settings{Config: *c}))
		}
	}
	return m.throttle.Said(said, c.ClientID, c.Brokers[0])
}
