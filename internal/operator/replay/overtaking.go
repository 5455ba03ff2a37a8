package replay

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/kafka"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/migrations"
)

// overtaking says which events would take the place of a newer one: a compacted
// topic keeps the last record of a key, so that a replay of an old event would
// bring back an old state for good. A newer event that is committed between
// this look and the replay is not seen.
func (o *Order) overtaking(ctx context.Context, db *operator.Database, plan *Plan) ([]string, error) {
	if o.Unchecked {
		return nil, nil
	}
	topics, problems := o.topics(plan.Report.Kinds)
	if len(problems) > 0 {
		return problems, nil
	}
	compacted, err := kafka.Compacted(ctx, kafka.Cluster{Brokers: o.Kafka.Config.Brokers,
		Secure: o.Kafka.Config.Secure}, slices.Collect(topicsOf(topics)))
	if err != nil || len(compacted) == 0 {
		return nil, err
	}
	ids := make([]uuid.UUID, len(plan.events))
	for i, v := range plan.events {
		ids[i] = v.ID
	}
	rows, err := outboxdb.New(db).OvertakenEvents(ctx, ids)
	if err != nil {
		return nil, operator.Explain(err, migrations.Outbox)
	}
	for _, v := range rows {
		topic, known := topics[Kind{Namespace: v.Namespace, AggregateType: v.AggregateType, EventType: v.EventType}]
		switch {
		case !known:
			problems = append(problems, fmt.Sprintf("topic %s is compacted, and of %s the row is gone, e.g. of %s: whether a newer event of the aggregate exists cannot be told",
				compacted[0], label.Count(v.Events, "event"), v.Example))
		case slices.Contains(compacted, topic):
			problems = append(problems, fmt.Sprintf("topic %s is compacted, and %s, e.g. %s:%s: a replay would bring back an old state for good",
				topic, label.Count(v.Events, "event is not the newest of its aggregate", "events are not the newest of their aggregate"), v.Namespace, v.Example))
		}
	}
	return problems, nil
}

// topics says where each kind leads.
func (o *Order) topics(kinds []Kind) (topics map[Kind]string, problems []string) {
	topics = make(map[Kind]string, len(kinds))
	for _, k := range kinds {
		topic, err := o.Kafka.TopicOf(k.Namespace, k.AggregateType, k.EventType)
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s of %s %s: %v", k.EventType, k.Namespace, k.AggregateType, err))
		}
		k.Events = 0
		topics[k] = topic
	}
	return topics, problems
}

func topicsOf(kinds map[Kind]string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		seen := make(map[string]bool, len(kinds))
		for _, topic := range kinds {
			if !seen[topic] && !yield(topic) {
				return
			}
			seen[topic] = true
		}
	}
}
