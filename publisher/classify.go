package publisher

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/IBM/sarama"
)

// errorClass is what an error of the Kafka client is about, and so what has to
// change before a new try can do better.
type errorClass int

const (
	// classTransient: the cluster or the network, for now. Try again.
	classTransient errorClass = iota
	// classRoute: one topic. Hold its events, let others pass.
	classRoute
	// classRecord: one record, or the batch that it was in.
	classRecord
	// classRelay: the relay as a whole: its credentials, its rights, its
	// settings, its version. Nothing can be published until an operator acts.
	classRelay
	// classProducer: the producer's own state; a new one cures it.
	classProducer
)

// kind is one row of what is known about errors. The first match counts.
type kind struct {
	class  errorClass
	errors []error
	advice string // {max} stands for max_message_bytes, {server} for a broker
}

var kinds = []kind{
	{
		classRoute,
		[]error{sarama.ErrMessageSizeTooLarge, sarama.ErrMessageSetSizeTooLarge},
		"the broker refused a whole batch as too large: max.message.bytes of the topic is below kafka.max_message_bytes = {max} of the relay; " +
			"raise the one or lower the other (and allow DESCRIBE_CONFIGS on the topic, so that this is seen before)",
	},
	{
		classRoute,
		[]error{sarama.ErrTopicAuthorizationFailed},
		"the relay's principal may not write; grant WRITE and DESCRIBE on the topic",
	},
	{
		classRoute,
		[]error{sarama.ErrUnknownTopicOrPartition, sarama.ErrInvalidTopic, sarama.ErrInvalidPartition},
		"the topic, or this partition of it, is no more; create it, or correct the route",
	},
	{
		classRecord,
		[]error{sarama.ErrInvalidRecord, sarama.ErrUnsupportedForMessageFormat, sarama.ErrPolicyViolation},
		"the broker's validation refused a record; see the topic's settings (cleanup.policy), a policy of the brokers, and the broker's log",
	},
	{
		classRoute, // the relay stamps all records by its own clock
		[]error{sarama.ErrInvalidTimestamp},
		"this relay's clock and the broker's differ by more than message.timestamp.after.max.ms and message.timestamp.before.max.ms of the topic allow; " +
			"compare `date -u` on both machines, and set the clock that is wrong",
	},
	{
		classRelay,
		[]error{sarama.ErrClusterAuthorizationFailed, sarama.ErrTransactionalIDAuthorizationFailed,
			sarama.ErrGroupAuthorizationFailed},
		"the relay's principal may not do this; grant WRITE and DESCRIBE on the topics, on its transactional id and READ on its group (and IDEMPOTENT_WRITE on clusters older than 2.8)",
	},
	{
		classRelay,
		[]error{sarama.ErrSASLAuthenticationFailed, sarama.ErrUnsupportedSASLMechanism, sarama.ErrIllegalSASLState,
			sarama.ErrSecurityDisabled},
		"the broker does not accept the relay's credentials; see kafka.sasl",
	},
	{
		classRelay,
		[]error{sarama.ErrUnsupportedVersion, sarama.ErrUnsupportedCompressionType, sarama.ErrInvalidTransactionTimeout,
			sarama.ErrInvalidRequest},
		"the brokers do not understand this: they must be 2.8 or newer; see kafka.compression, and kafka.transaction.timeout beside the brokers' transaction.max.timeout.ms",
	},
	{
		classProducer,
		[]error{
			sarama.ErrOutOfOrderSequenceNumber, sarama.ErrUnknownProducerID, sarama.ErrInvalidProducerEpoch,
			sarama.ErrProducerFenced, sarama.ErrInvalidProducerIDMapping, sarama.ErrDuplicateSequenceNumber,
			sarama.ErrInvalidTxnState, sarama.ErrTransactionCoordinatorFenced,
		},
		"the broker no longer knows this producer; a new producer cures it, nothing to do unless it repeats",
	},
	{
		classTransient,
		[]error{sarama.ErrConcurrentTransactions},
		"the transaction before has not ended for longer than the retries last; look at the leaders of the partitions it wrote to with `kafka-topics.sh --bootstrap-server {server} --describe`",
	},
	{
		classTransient,
		[]error{
			sarama.ErrNotEnoughReplicas, sarama.ErrNotEnoughReplicasAfterAppend, sarama.ErrLeaderNotAvailable,
			sarama.ErrNotLeaderForPartition, sarama.ErrRequestTimedOut, sarama.ErrKafkaStorageError,
			sarama.ErrOutOfBrokers,
			sarama.ErrReplicaNotAvailable, sarama.ErrFencedLeaderEpoch, sarama.ErrUnknownLeaderEpoch,
			sarama.ErrLogDirNotFound,
		},
		"the partition cannot be written for now; look at its leader and in-sync replicas with `kafka-topics.sh --bootstrap-server {server} --describe`",
	},
	{
		classTransient,
		[]error{sarama.ErrInvalidMessage},
		"the checksum of what arrives is wrong: something between the relay and the broker alters bytes, the memory of one of them is bad, " +
			"or the broker does not know kafka.compression; see the broker's log",
	},
	{
		classTransient,
		[]error{sarama.ErrUnknown},
		"the broker failed and does not say at what; its log does. A topic to which it happens twice in a row rests, and others go on",
	},
}

// noAdvice goes with errors that are not in kinds: of the network, of a broker
// that is busy, or new ones.
const noAdvice = "unexpected; the relay connects anew and publishes again from its checkpoint"

// untrusted is what TLS says about either side's certificate.
var untrusted = kind{
	class:  classRelay,
	advice: "one side does not accept the other's certificate, which may have expired or been replaced; see kafka.tls and the broker's ssl.* settings",
}

func kindOf(err error) kind {
	var certificate *tls.CertificateVerificationError
	var alert tls.AlertError
	if errors.As(err, &certificate) || errors.As(err, &alert) {
		return untrusted
	}
	for _, k := range kinds {
		for _, known := range k.errors {
			if errors.Is(err, known) {
				return k
			}
		}
	}
	return kind{class: classTransient, advice: noAdvice}
}

// classify returns the class of an error of sarama's, however wrapped. What it
// does not know is transient: to try again does no harm. It is pure.
func classify(err error) errorClass { return kindOf(err).class }

// advise returns what to do about an error of the producer. It is pure.
func advise(err error, s *settings) string {
	return strings.NewReplacer("{max}", strconv.Itoa(s.MaxMessageBytes), "{server}", s.Brokers[0]).Replace(kindOf(err).advice)
}

// explain turns what a record, or the batch that it is the first of, was given up
// for into an error for the operator, typed by what the next publisher has to know.
// It is pure.
func explain(r *pending, cause error, s *settings) error {
	topic := r.topic.name
	err := fmt.Errorf("%w: publish to topic %q partition %d: %w: %s",
		ErrFailed, topic, r.Partition, cause, advise(cause, s))
	tooLarge := errors.Is(cause, sarama.ErrMessageSizeTooLarge) || errors.Is(cause, sarama.ErrMessageSetSizeTooLarge)
	class := classify(cause)
	switch {
	case tooLarge && (!r.alone() || !r.topic.proven()), class == classRecord && !r.alone():
		return &NarrowError{Topic: topic, Err: err}
	case tooLarge, class == classRecord:
		return &RefusedError{Topic: topic, ID: r.id, Err: fmt.Errorf("record %s, alone in its batch: %w", r.id, err)}
	case class == classRoute:
		return &LostRouteError{Route: topic, Err: err}
	}
	return err
}

// lostRoute is the failure of a producer that waits for a topic which was found
// unusable. The refusal is quoted as text: an error that matches [ErrRoute]
// says that nothing was handed over.
func lostRoute(topic string, refused *RouteError) error {
	return &LostRouteError{
		Route: topic,
		Err:   fmt.Errorf("%w: events wait for a topic that can no longer be written: %s", ErrFailed, refused.Error()),
	}
}
