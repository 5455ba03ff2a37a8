package publisher

import (
	"errors"
	"fmt"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/publisher/internal/rights"
)

// judge decides whether a topic can be published to. It is pure. A nil metadata
// is a topic that the answer left out; limit is 0 when unknown.
func judge(name string, metadata *sarama.TopicMetadata, limit int, s *settings) topicState {
	refuse := func(reason, cure string, args ...any) topicState {
		return topicState{refused: &RouteError{Route: name, Topic: name, Reason: reason,
			Cure: fmt.Sprintf(cure, args...)}}
	}
	switch {
	case missing(metadata) && s.Topics.Create: // the broker that was asked does not know it yet
		return refuse("does not exist", "%s", byHand(s))
	case missing(metadata):
		return refuse("does not exist", "%s"+orElse+"set topics.create: true"+andRestart, byHand(s))
	case rights.Refused(metadata, sarama.AclOperationWrite):
		return refuse("may not be written by this principal", "%s",
			s.grant("--operation Write --operation Describe --operation DescribeConfigs --topic {topic}"))
	case len(metadata.Partitions) == 0:
		return refuse(fmt.Sprintf("has no partitions at the moment (%v)", metadata.Err), "it is looked up again by itself; see `kafka-topics.sh --bootstrap-server %s --describe --topic {topic}`", s.Brokers[0])
	}
	return topicState{
		partitions: int32(len(metadata.Partitions)),
		id:         metadata.Uuid,
		limit:      limit,
		narrow:     limit > 0 && limit < s.MaxMessageBytes,
	}
}

// missing tells whether the cluster does not have the topic.
func missing(metadata *sarama.TopicMetadata) bool {
	return metadata == nil || metadata.Err == sarama.ErrUnknownTopicOrPartition
}

// uncreated says why a missing topic could not be made.
func uncreated(name string, cause error, s *settings) *RouteError {
	e := &RouteError{Route: name, Topic: name, Reason: fmt.Sprintf("does not exist, and could not be created: %v", cause), Cure: byHand(s)}
	if errors.Is(cause, sarama.ErrTopicAuthorizationFailed) || errors.Is(cause, sarama.ErrClusterAuthorizationFailed) {
		e.Reason = "does not exist, and this principal may not create it"
		e.Cure = s.grant("--operation Create --topic {topic}") + ", or " + byHand(s)
	}
	return e
}

// replicas is how many a printed command asks for: no more than there are brokers.
func (s *settings) replicas() int {
	if len(s.told) > 0 {
		return min(int(s.Topics.ReplicationFactor), len(s.told))
	}
	return int(s.Topics.ReplicationFactor)
}

// byHand is the command that makes a topic, behind what would have it refused.
func byHand(s *settings) string {
	first := ""
	if n := s.replicas(); n < int(s.Topics.ReplicationFactor) {
		first = fmt.Sprintf("set topics.replication_factor of the relay's configuration, which is %d, to %d, for there are no more brokers; then ", s.Topics.ReplicationFactor, n)
	}
	return first + fmt.Sprintf("create it with `outboxctl topics create --config FILE` or with `kafka-topics.sh --bootstrap-server %s --create --topic {topic} --partitions %d --replication-factor %d` (one that was there before: with the partitions that it had, or its keys move)",
		s.Brokers[0], s.Topics.Partitions, s.replicas())
}

// narrowCure is what to do about a topic that takes less than a batch.
func narrowCure(s *settings, name string) string {
	return raiseLimit(s, name) + ", or lower kafka.max_message_bytes of relay.yaml and start the relay again"
}

// raiseLimit is the command that lets a topic take all that the relay sends.
func raiseLimit(s *settings, name string) string {
	return fmt.Sprintf("raise it with `kafka-configs.sh --bootstrap-server %s --alter --entity-type topics --entity-name %s --add-config max.message.bytes=%d`",
		s.Brokers[0], name, s.MaxMessageBytes)
}

// grant is the command that gives the relay rights.
func (s *settings) grant(rights string) string {
	return fmt.Sprintf("grant it with `kafka-acls.sh --bootstrap-server %s --add --allow-principal %s %s`", s.Brokers[0], principal(s), rights)
}

// principal is whom the broker takes the relay for, as a word of a shell: the user, or
// by its certificate, unless the broker has rules (ssl.principal.mapping.rules) that make another of it.
func principal(s *settings) string {
	switch {
	case s.SASL.Username != "":
		return "User:" + s.SASL.Username
	case s.TLS == nil || len(s.TLS.Certificates) == 0:
		return "User:ANONYMOUS"
	}
	leaf := s.TLS.Certificates[0].Leaf
	if leaf == nil {
		return "'User:the name in the certificate'"
	}
	return "'User:" + leaf.Subject.String() + "'"
}
