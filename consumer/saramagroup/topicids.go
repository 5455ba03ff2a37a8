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

// topicsEvery is how often a session looks whether its topics are still those with which it began.
const topicsEvery = time.Minute

// idsVersion of the request Metadata was the first with topic ids.
const idsVersion = 10

// topicIDs asks Kafka for the ids of topics, and of the cluster, of which sarama tells its
// own users nothing. One that is zero or missing is not known: the broker is older than 2.8,
// something between does not pass it on, or, which is an error, the topic is not there now.
// It asks the group's coordinator, without which nothing is committed either.
func (m *member) topicIDs(topics []string) (ids map[string]uuid.UUID, cluster string, err error) {
	ids = make(map[string]uuid.UUID, len(topics))
	err = askCoordinator(m.client, m.handler.Group(), func(broker *sarama.Broker) error {
		answer, err := broker.GetMetadata(&sarama.MetadataRequest{Version: idsVersion, Topics: topics})
		switch {
		case errors.Is(err, sarama.ErrUnsupportedVersion):
			return nil
		case err != nil:
			return err
		case answer.ClusterID != nil:
			cluster = *answer.ClusterID
		}
		for _, t := range answer.Topics {
			if ids[t.Name] = uuid.UUID(t.Uuid); t.Err != sarama.ErrNoError { // not wrapped: it may pass
				err = fmt.Errorf("which id topic %q has: %s", t.Name, t.Err.Error())
			}
		}
		return err
	})
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
