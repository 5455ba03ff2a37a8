package publisher

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/publisher/internal/rights"
)

// policyName is the topic setting that says what becomes of old records.
const policyName = "cleanup.policy"

// CheckpointError says that the topic that exactly-once mode keeps its
// checkpoint under is not as it must be. Kafka itself would say so only at the
// first commit, and not why.
type CheckpointError struct {
	Topic  string
	Reason string // what was found
	Cure   string // what to do next
	// Missing: there is no such topic.
	Missing bool
}

// Error implements error.
func (e *CheckpointError) Error() string {
	return fmt.Sprintf("checkpoint topic %q %s; %s", e.Topic, e.Reason, e.Cure)
}

// checkCheckpoint looks at the checkpoint topic, and makes it when it is missing
// and may be made.
func checkCheckpoint(b *brokers, w *wire, s *settings, topic string) error {
	created := false
	for try := 0; ; try++ {
		response, err := b.describe([]string{topic})
		if err != nil {
			return fmt.Errorf("look up checkpoint topic %q: %w", topic, err)
		}
		metadata := find(response, topic)
		missing := metadata == nil || errors.Is(metadata.Err, sarama.ErrUnknownTopicOrPartition) ||
			len(metadata.Partitions) == 0
		if missing && s.Topics.Create && !created {
			if err := createCheckpoint(b, s, topic); err != nil {
				return err
			}
			created = true
		}
		if !missing || !created || try == createTries || !w.Pause(createPause) {
			return judgeCheckpoint(topic, metadata, policyOf(b, s, topic, missing), s)
		}
	}
}

// lookForTopic fails the Transactional when the checkpoint topic is missing and a
// transaction has been open for a while: its commit would be sent again until the
// transaction's timeout, without a word why. Who makes the next one is told what
// is to be done, or has the topic made.
func (t *Transactional) lookForTopic(b *brokers) error {
	opened := t.opened.Load()
	if opened == 0 || time.Since(t.born)-time.Duration(opened) < stallCheck {
		return nil
	}
	topic := t.config.Topic
	response, err := b.describe([]string{topic})
	if err != nil {
		return nil //nolint:nilerr // the brokers are away, and waited for
	}
	var lost *CheckpointError
	if err := judgeCheckpoint(topic, find(response, topic), "", t.settings); errors.As(err, &lost) && lost.Missing {
		return fmt.Errorf("%w: %w", ErrFailed, lost)
	}
	return nil
}

func find(response *sarama.MetadataResponse, topic string) *sarama.TopicMetadata {
	for _, metadata := range response.Topics {
		if metadata.Name == topic {
			return metadata
		}
	}
	return nil
}

// policyOf returns the topic's cleanup.policy, or nothing when it cannot be
// read, which is said and no reason to stop.
func policyOf(b *brokers, s *settings, topic string, missing bool) string {
	if missing {
		return ""
	}
	configs, err := b.configs([]string{topic}, policyName)
	if err != nil {
		s.Logger.Warn("cannot read "+policyName+" of the checkpoint topic, which must be compact; going on. Grant DESCRIBE_CONFIGS to have it checked",
			"topic", topic, "error", err)
	}
	return configs[topic][policyName]
}

// judgeCheckpoint decides whether the topic can be used. It is pure. An empty
// policy is one that is not known.
func judgeCheckpoint(topic string, metadata *sarama.TopicMetadata, policy string, s *settings) error {
	refuse := func(reason, cure string, args ...any) error {
		return &CheckpointError{Topic: topic, Reason: reason, Cure: fmt.Sprintf(cure, args...)}
	}
	server := s.Brokers[0]
	create := fmt.Sprintf("kafka-topics.sh --bootstrap-server %s --create --topic %s --partitions %d --replication-factor %d --config cleanup.policy=compact",
		server, topic, checkpointWidth, s.replicas())
	switch {
	case metadata == nil || errors.Is(metadata.Err, sarama.ErrUnknownTopicOrPartition):
		return &CheckpointError{Topic: topic, Missing: true, Reason: "does not exist", Cure: "create it with `" + create + "`" + orElse + "set topics.create: true" + andRestart}
	case rights.Refused(metadata, sarama.AclOperationRead):
		return refuse("may not be read by this principal", "%s",
			s.grant("--operation Read --operation Describe --operation DescribeConfigs --topic "+topic))
	case len(metadata.Partitions) == 0:
		return refuse(fmt.Sprintf("has no partitions at the moment (%v)", metadata.Err), "see `kafka-topics.sh --bootstrap-server %s --describe --topic %s`", server, topic)
	case len(metadata.Partitions) < checkpointWidth:
		return refuse(fmt.Sprintf("has %d partition, must have %d", len(metadata.Partitions), checkpointWidth),
			"give it the other one with `kafka-topics.sh --bootstrap-server %s --alter --topic %s --partitions %d`; nothing that is kept there is lost", server, topic, checkpointWidth)
	case len(metadata.Partitions) > checkpointWidth:
		return refuse(fmt.Sprintf("has %d partitions, must have %d", len(metadata.Partitions), checkpointWidth),
			"if nothing else uses it, delete it and create it with `%s`: the relay goes on from relay_state, and may publish up to a checkpoint interval of events again", create)
	case policy != "" && !strings.Contains(policy, "compact"):
		return refuse(fmt.Sprintf("has cleanup.policy = %s, must be compact", policy),
			"set it with `kafka-configs.sh --bootstrap-server %s --alter --entity-type topics --entity-name %s --add-config cleanup.policy=compact`",
			server, topic)
	}
	return nil
}

// createCheckpoint makes the topic, replicated as the others that are made.
func createCheckpoint(b *brokers, s *settings, topic string) error {
	compact := "compact"
	failures, err := b.create(map[string]*sarama.TopicDetail{topic: {
		NumPartitions: checkpointWidth, ReplicationFactor: s.Topics.ReplicationFactor,
		ConfigEntries: map[string]*string{policyName: &compact},
	}})
	if err = errors.Join(err, failures[topic]); errors.Is(err, sarama.ErrTopicAlreadyExists) {
		return nil // another relay was faster
	}
	if err != nil {
		return fmt.Errorf("create checkpoint topic %q: %w; create it by hand, or grant CREATE", topic, err)
	}
	s.Logger.Info("created checkpoint topic", "topic", topic, "replication_factor", s.Topics.ReplicationFactor)
	return nil
}
