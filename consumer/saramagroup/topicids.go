package saramagroup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/uuid"
)

// topicsEvery is how often a session looks whether its topics are still those with
// which it began.
const topicsEvery = time.Minute

// idsVersion of the request Metadata was the first with topic ids.
const idsVersion = 10

// topicIDs asks Kafka for the ids of topics, and of the cluster, of which sarama tells its
// own users nothing. A zero id is not known: the broker is older than 2.8, or something
// between does not pass it on. One that is missing is a topic that is not there now, which is
// an error beside the ids of the others. It asks the group's coordinator, without which nothing
// is committed either.
func (m *member) topicIDs(topics []string) (ids map[string]uuid.UUID, cluster string, err error) {
	ids = make(map[string]uuid.UUID, len(topics))
	broker, err := m.client.Coordinator(m.handler.Group())
	if err != nil {
		return nil, "", fmt.Errorf("find the group's coordinator: %w", err)
	}
	answer, err := broker.GetMetadata(&sarama.MetadataRequest{Version: idsVersion, Topics: topics})
	switch {
	case errors.Is(err, sarama.ErrUnsupportedVersion):
		for _, topic := range topics {
			ids[topic] = uuid.Nil
		}
		return ids, "", nil
	case err != nil:
		_ = broker.Close() // or else the next question meets the same connection
		_ = m.client.RefreshCoordinator(m.handler.Group())
		return nil, "", fmt.Errorf("ask %s for the ids of topics: %w", broker.Addr(), err)
	case answer.ClusterID != nil:
		cluster = *answer.ClusterID
	}
	for _, t := range answer.Topics {
		if t.Err == sarama.ErrNoError {
			ids[t.Name] = uuid.UUID(t.Uuid)
		}
	}
	for _, topic := range topics {
		if _, there := ids[topic]; !there {
			err = fmt.Errorf("topic %q is not there", topic)
		}
	}
	return ids, cluster, err
}

// identify reads the ids of the session's topics and of its cluster. Where to begin in a
// topic that is not there now nobody can tell: it may be about to be made anew.
func (m *member) identify(claims map[string][]int32) error {
	if len(claims) == 0 { // a request for none is one for all
		return nil
	}
	ids, cluster, err := m.topicIDs(slices.Collect(maps.Keys(claims)))
	maps.DeleteFunc(ids, func(_ string, id uuid.UUID) bool { return id == uuid.Nil })
	if len(ids) == len(claims) { // else the id that a mark has may be of a topic of before
		m.cluster = cluster
	}
	m.ids.Store(&ids)
	return err
}

// topicID is zero when the id is not known.
func (m *member) topicID(topic string) uuid.UUID {
	if ids := m.ids.Load(); ids != nil {
		return (*ids)[topic]
	}
	return uuid.Nil
}

// madeAnew reports whether one of the session's topics was made anew since it began,
// as far as Kafka tells. What the session knows of offsets says nothing then: it is ended,
// and commits nothing more. Nobody can tell of a topic that is not there: it may be about
// to be made.
func (m *member) madeAnew() (bool, error) {
	before := m.ids.Load()
	if before == nil || len(*before) == 0 {
		return false, nil
	}
	now, _, err := m.topicIDs(slices.Collect(maps.Keys(*before)))
	for topic, id := range *before {
		if is := now[topic]; another(id, is) {
			m.log.Warn("the topic was made anew; joining again, to read it from its beginning", "topic", topic, "was", id, "is", is)
			m.end()
			return true, nil
		}
	}
	return false, err
}

// watchTopics ends the session when one of its topics was made anew.
func (m *member) watchTopics(ctx context.Context) {
	for sleep(ctx, topicsEvery) {
		if _, err := m.madeAnew(); err != nil {
			m.log.Warn("nobody can tell whether the topics are still the same", "error", err)
		}
	}
}
