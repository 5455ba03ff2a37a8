package produce

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/IBM/sarama"
)

const (
	metadataBackoff = 100 * time.Millisecond
	metadataCeiling = 5 * time.Second
)

// leaders looks up who leads the partitions of topics, beside the loop, so that a
// broker that does not answer holds nobody up.
type leaders struct {
	locate    func(topics []string, elsewhere bool) (*sarama.MetadataResponse, error)
	questions chan question // of capacity 1; closed by the loop
	found     chan found    // of capacity 1
}

// question is what the loop asks.
type question struct {
	topics    map[string]bool
	elsewhere bool // of another broker than before
}

// found is what was answered.
type found struct {
	topics map[string]led
	err    error // of the network, for all topics
}

// led is who leads the partitions of a topic.
type led struct {
	addresses []string // by partition; empty: nobody at the moment
	refused   error    // the topic may not be asked for
}

func (l led) address(partition int32) string {
	if int(partition) >= len(l.addresses) {
		return ""
	}
	return l.addresses[partition]
}

// run answers each question of the loop, one at a time.
func (l *leaders) run() {
	for q := range l.questions {
		f := found{topics: make(map[string]led, len(q.topics))}
		for name := range q.topics {
			f.topics[name] = led{}
		}
		response, err := l.locate(slices.Collect(maps.Keys(q.topics)), q.elsewhere)
		if f.err = err; err == nil {
			f.read(response)
		}
		l.found <- f
	}
}

// read takes in an answer.
func (f found) read(response *sarama.MetadataResponse) {
	addresses := make(map[int32]string, len(response.Brokers))
	for _, b := range response.Brokers {
		addresses[b.ID()] = b.Addr()
	}
	for _, t := range response.Topics {
		var topic led
		if errors.Is(t.Err, sarama.ErrTopicAuthorizationFailed) || errors.Is(t.Err, sarama.ErrInvalidTopic) {
			topic.refused = t.Err
		}
		for _, p := range t.Partitions {
			if p.ID < 0 || errors.Is(p.Err, sarama.ErrLeaderNotAvailable) {
				continue
			}
			for int(p.ID) >= len(topic.addresses) {
				topic.addresses = append(topic.addresses, "")
			}
			topic.addresses[p.ID] = addresses[p.Leader]
		}
		f.topics[t.Name] = topic
	}
}
