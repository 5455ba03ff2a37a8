package events

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/kafka"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher"
)

// searchBefore is how much older than the row a record of it may be stamped:
// clocks of PostgreSQL and Kafka differ.
const searchBefore = time.Minute

// Search looks for copies in Kafka, where a topic is known. Why it could not is in the
// report: what the database knows is told all the same.
func (r *Life) Search(ctx context.Context, db *operator.Database, w kafka.Where, key operator.Name) error {
	if w.Topic == "" && !w.Routed {
		return nil
	}
	topic, err := r.topicOf(w, key)
	if err == nil {
		err = bound(ctx, db, w)
	}
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

// bound refuses a cluster that is not the one to which the configuration's relay
// publishes: that an event is not there says nothing.
func bound(ctx context.Context, db *operator.Database, w kafka.Where) error {
	if w.Slot == "" {
		return nil
	}
	state, err := outboxdb.New(db).LoadRelayState(ctx, w.Slot)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && state.KafkaCluster == nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look to which cluster the relay is bound: %w", err)
	}
	sink := w.Config
	sink.Cluster = *state.KafkaCluster
	var other *publisher.OtherClusterError
	if _, err := publisher.Inspect(ctx, sink, nil); errors.As(err, &other) {
		return fmt.Errorf("this is not the cluster that relay %s is bound to: %w; put the right kafka.brokers into the configuration, or see `outboxctl adopt --help`", state.Relay, other)
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
