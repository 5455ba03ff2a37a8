package publisher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/IBM/sarama"
)

// TopicReport is what [Inspect] found of one topic.
type TopicReport struct {
	Name       string
	Partitions int
	// Replicas is the smallest number of replicas that a partition has.
	Replicas int
	// MinInSync is min.insync.replicas: how many replicas have an event that
	// counts as acknowledged. 0 when it could not be read.
	MinInSync int
	// Unclean: unclean.leader.election.enable is true, so that a replica
	// without acknowledged events may become the leader, and lose them.
	Unclean bool
	// Limit is max.message.bytes; 0 when it could not be read.
	Limit int
	// Narrow: Limit is below the relay's, so that records go one by one, which
	// is slow, and those beyond it hold the route. Cure says how to widen it.
	Narrow bool
	Cure   string
	// Compacted: cleanup.policy holds compact, so that Kafka removes every event
	// behind which another of its aggregate stands.
	Compacted bool
	// Missing: it does not exist, and Publish makes it ([Topics].Create).
	Missing bool
	// Err says why the topic cannot be published to: a [*RouteError], or nil.
	Err error
}

// Inspect connects and looks at the topics as Publish would, without publishing
// or creating anything. The error says that no broker can be used.
func Inspect(ctx context.Context, cfg Config, topics []string) ([]TopicReport, error) {
	var reports []TopicReport
	err := look(ctx, cfg, func(b *brokers, _ *wire, s *settings) (err error) {
		if len(topics) > 0 {
			reports, err = inspect(b, s, topics)
		}
		return err
	})
	return reports, err
}

// FixedTopics returns the topics that routes name without a variable, each once.
func (c Config) FixedTopics() ([]string, error) {
	s, err := c.resolve()
	if err != nil {
		return nil, err
	}
	var topics []string
	for _, route := range s.router.routes {
		if topic, fixed := route.template.fixed(); fixed && !slices.Contains(topics, topic) {
			topics = append(topics, topic)
		}
	}
	return topics, nil
}

// InspectCheckpoint connects and looks at the topic that exactly-once mode keeps
// its checkpoint under, and has it made where it is missing and create says so. The
// error is a [*CheckpointError] when the topic is not as it must be.
func InspectCheckpoint(ctx context.Context, cfg Config, create bool) error {
	cfg.Topics.Create = create
	return look(ctx, cfg, func(b *brokers, w *wire, s *settings) error {
		return checkCheckpoint(b, w, s, DefaultCheckpointTopic)
	})
}

// look connects for the time of a look.
func look(ctx context.Context, cfg Config, at func(b *brokers, w *wire, s *settings) error) error {
	s, err := cfg.resolve()
	if err != nil {
		return err
	}
	w := newWire(s.Dial)
	disarm := context.AfterFunc(ctx, w.Cut)
	defer func() {
		if disarm() {
			w.Cut()
		}
	}()
	b, err := reach(s, w)
	if err != nil {
		return errors.Join(ctx.Err(), err)
	}
	defer b.Close()
	return at(b, w, s)
}

func inspect(b *brokers, s *settings, topics []string) ([]TopicReport, error) {
	response, err := b.describe(topics)
	if err != nil {
		return nil, fmt.Errorf("look up topics: %w", err)
	}
	found := make(map[string]*sarama.TopicMetadata, len(response.Topics))
	for _, metadata := range response.Topics {
		found[metadata.Name] = metadata
	}
	// Without the right to read them, the relay's own limit counts.
	configs, _ := b.configs(topics, limitName, minInSyncName, uncleanName, policyName)
	reports := make([]TopicReport, len(topics))
	for i, name := range topics {
		reports[i] = report(name, found[name], configs[name], s)
	}
	return reports, nil
}

func report(name string, metadata *sarama.TopicMetadata, config map[string]string, s *settings) TopicReport {
	r := TopicReport{Name: name, Unclean: config[uncleanName] == "true"}
	r.Limit, _ = strconv.Atoi(config[limitName]) // 0 when it could not be read
	r.MinInSync, _ = strconv.Atoi(config[minInSyncName])
	r.Compacted = slices.Contains(strings.Split(config[policyName], ","), "compact")
	if s.Topics.Create && missing(metadata) {
		r.Missing = true
		return r
	}
	state := judge(name, metadata, r.Limit, s)
	if state.refused != nil {
		r.Err = state.refused
	}
	if r.Narrow = state.narrow; r.Narrow {
		r.Cure = narrowCure(s, name)
	}
	if metadata == nil {
		return r
	}
	r.Partitions = len(metadata.Partitions)
	for i, p := range metadata.Partitions {
		if i == 0 || len(p.Replicas) < r.Replicas {
			r.Replicas = len(p.Replicas)
		}
	}
	return r
}
