package events

import (
	"context"
	"errors"
	"time"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/kafka"
	"github.com/onceward/onceward/outbox"
)

// searchBefore is how much older than the row a record of it may be stamped:
// clocks of PostgreSQL and Kafka differ.
const searchBefore = time.Minute

// Search looks for copies in Kafka, where a topic is known. Why it could not is in the
// report: what the database knows is told all the same.
func (r *Life) Search(ctx context.Context, w kafka.Where, key operator.Name) error {
	if w.Topic == "" && !w.Routed {
		return nil
	}
	topic, err := r.topicOf(w, key)
	if err == nil {
		s := r.searchFor(w.Config.Brokers, topic, key)
		s.Secure = w.Config.Secure
		r.Kafka, err = kafka.FindCopies(ctx, s)
	}
	if ctx.Err() != nil {
		return err
	}
	if err != nil {
		r.NotSearched = err.Error()
	}
	return nil
}

// topicOf asks the routes, where no topic is named.
func (r *Life) topicOf(w kafka.Where, key operator.Name) (string, error) {
	switch letter := r.eventLetter(""); {
	case w.Topic != "":
		return w.Topic, nil
	case r.Row != nil:
		return w.TopicOf(key.Namespace, r.Row.AggregateType, r.Row.EventType)
	case letter != nil:
		return w.TopicOf(key.Namespace, letter.aggregateType, letter.eventType)
	}
	return "", errors.New("neither row nor letter is left that would say which route it took; give --topic")
}

// searchFor says where copies can be. Without row and letter the aggregate is
// unknown, so that all partitions are read, from before the key's time: the key
// may have been made by a clock that ran ahead.
func (r *Life) searchFor(brokers []string, topic string, key operator.Name) kafka.Search {
	s := kafka.Search{Brokers: brokers, Topic: topic, Key: operator.KeyText(key.Namespace, key.ID),
		From: key.Time().Add(-outbox.DefaultKeySkew - searchBefore)}
	switch {
	case r.Row != nil:
		s.RecordKey, s.From = []byte(r.Row.AggregateID), r.Row.CreatedAt.Add(-searchBefore)
	case len(r.DeadLetters) > 0:
		s.RecordKey = []byte(r.DeadLetters[0].AggregateID)
	}
	return s
}
