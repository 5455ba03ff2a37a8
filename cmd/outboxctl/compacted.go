package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/IBM/sarama"
	"github.com/google/uuid"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/migrations"
)

// overtaking says which events would take the place of a newer one: a compacted
// topic keeps the last record of a key, so that a replay of an old event would
// bring back an old state for good. A newer event that is committed between
// this look and the replay is not seen.
func (o *replayOrder) overtaking(ctx context.Context, db *operator.Database, plan *replayPlan) ([]string, error) {
	if o.unchecked {
		return nil, nil
	}
	topics, problems := o.topics(plan.report.Kinds)
	if len(problems) > 0 {
		return problems, nil
	}
	compacted, err := compactedTopics(ctx, connection{Brokers: o.kafka.kafka.Brokers, Secure: o.kafka.kafka.Secure}, slices.Collect(topicsOf(topics)))
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
		topic, known := topics[kindReport{Namespace: v.Namespace, AggregateType: v.AggregateType, EventType: v.EventType}]
		switch {
		case !known:
			problems = append(problems, fmt.Sprintf("topic %s is compacted, and of %d events the row is gone, e.g. of %s: whether a newer event of the aggregate exists cannot be told",
				compacted[0], v.Events, v.Example))
		case slices.Contains(compacted, topic):
			problems = append(problems, fmt.Sprintf("topic %s is compacted, and %d events are not the newest of their aggregate, e.g. %s:%s: a replay would bring back an old state for good",
				topic, v.Events, v.Namespace, v.Example))
		}
	}
	return problems, nil
}

// topics says where each kind leads.
func (o *replayOrder) topics(kinds []kindReport) (topics map[kindReport]string, problems []string) {
	topics = make(map[kindReport]string, len(kinds))
	for _, k := range kinds {
		topic, err := o.topic, error(nil)
		if topic == "" {
			topic, err = o.kafka.kafka.TopicOf(k.Namespace, k.AggregateType, k.EventType)
		}
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s of %s %s: %v", k.EventType, k.Namespace, k.AggregateType, err))
		}
		k.Events = 0
		topics[k] = topic
	}
	return topics, problems
}

func topicsOf(kinds map[kindReport]string) func(yield func(string) bool) {
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

// connection says how to reach a cluster.
type connection struct {
	Brokers []string
	Secure  func(*sarama.Config) error // TLS and SASL; nil: none
}

// compactedTopics returns, sorted, those of the topics that keep only the last
// record of each key. A topic that does not exist is an error.
func compactedTopics(ctx context.Context, at connection, topics []string) ([]string, error) {
	cfg, err := clientConfig(at.Secure)
	if err != nil {
		return nil, err
	}
	client, err := sarama.NewClient(at.Brokers, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to Kafka at %v: %w", at.Brokers, err)
	}
	defer client.Close() //nolint:errcheck // only reads were made
	request := &sarama.DescribeConfigsRequest{Version: 4}
	for _, topic := range topics {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if _, err := client.Partitions(topic); err != nil {
			return nil, fmt.Errorf("look up topic %s at %v: %w", topic, at.Brokers, err)
		}
		request.Resources = append(request.Resources, &sarama.ConfigResource{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{cleanupPolicy}})
	}
	response, err := client.LeastLoadedBroker().DescribeConfigs(request)
	if err != nil {
		return nil, fmt.Errorf("read the settings of topics %v: %w", topics, err)
	}
	var compacted []string
	for _, r := range response.Resources {
		if r.ErrorCode != 0 {
			return nil, fmt.Errorf("read the settings of topic %s: %w; allow DescribeConfigs on it, or give --unchecked if it is not compacted", r.Name, sarama.KError(r.ErrorCode))
		}
		for _, e := range r.Configs {
			if e.Name == cleanupPolicy && strings.Contains(e.Value, "compact") {
				compacted = append(compacted, r.Name)
			}
		}
	}
	slices.Sort(compacted)
	return compacted, nil
}

const cleanupPolicy = "cleanup.policy"
