package publisher

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/IBM/sarama"
)

// advice says what an operator does about an error of the producer.
type advice struct {
	errors []error
	text   string
}

var advices = []advice{
	{
		[]error{sarama.ErrMessageSizeTooLarge},
		"the broker refused a whole batch as too large: max.message.bytes of the topic is below max_message_bytes = {max} of the relay; " +
			"raise the one or lower the other (and allow DESCRIBE_CONFIGS on the topic, so that this is seen before)",
	},
	{
		[]error{sarama.ErrTopicAuthorizationFailed, sarama.ErrClusterAuthorizationFailed},
		"the relay's principal may not write; grant WRITE and DESCRIBE on the topic (and IDEMPOTENT_WRITE on clusters older than 2.8)",
	},
	{
		[]error{
			sarama.ErrOutOfOrderSequenceNumber, sarama.ErrUnknownProducerID, sarama.ErrInvalidProducerEpoch,
			sarama.ErrProducerFenced, sarama.ErrInvalidProducerIDMapping,
		},
		"the broker no longer knows this producer; a new producer cures it, nothing to do unless it repeats",
	},
	{
		[]error{
			sarama.ErrNotEnoughReplicas, sarama.ErrNotEnoughReplicasAfterAppend, sarama.ErrLeaderNotAvailable,
			sarama.ErrNotLeaderForPartition, sarama.ErrRequestTimedOut, sarama.ErrKafkaStorageError, sarama.ErrOutOfBrokers,
		},
		"the partition could not be written for longer than the retries last; look at its leader and in-sync replicas with kafka-topics.sh --describe",
	},
}

// advise returns what to do about an error of the producer. It is pure.
func advise(err error, maxMessageBytes int) string {
	for _, a := range advices {
		for _, known := range a.errors {
			if errors.Is(err, known) {
				return strings.ReplaceAll(a.text, "{max}", strconv.Itoa(maxMessageBytes))
			}
		}
	}
	return "unexpected; the relay connects anew and publishes again from its checkpoint"
}

// explain turns the producer's error about one message into one for the
// operator. It is pure.
func explain(failure *sarama.ProducerError, maxMessageBytes int) error {
	return fmt.Errorf("%w: publish to topic %q partition %d: %w: %s",
		ErrFailed, failure.Msg.Topic, failure.Msg.Partition, failure.Err, advise(failure.Err, maxMessageBytes))
}
