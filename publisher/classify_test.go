package publisher_test

import (
	"errors"
	"io"
	"testing"

	"github.com/IBM/sarama"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/publisher"
)

func TestProducerErrorsSayWhatToDo(t *testing.T) {
	cfg := minimal()
	cfg.MaxMessageBytes = 12345
	for _, c := range []struct {
		err  error
		want string
	}{
		{sarama.ErrMessageSizeTooLarge, "max_message_bytes = 12345 of the relay"},
		{sarama.ErrTopicAuthorizationFailed, "grant WRITE"},
		{sarama.ErrUnknownTopicOrPartition, "is no more"},
		{sarama.ErrOutOfOrderSequenceNumber, "a new producer cures it"},
		{sarama.ErrProducerFenced, "a new producer cures it"},
		{sarama.ErrNotEnoughReplicas, "in-sync replicas with `kafka-topics.sh --bootstrap-server kafka-1:9093 --describe`"},
		{sarama.ErrPolicyViolation, "a policy of the brokers"},
		{sarama.ErrUnknown, "its log does"},
		{sarama.ErrInvalidMessage, "kafka.compression"},
		{sarama.ErrConcurrentTransactions, "the transaction before has not ended"},
		{sarama.ErrInvalidTimestamp, "this relay's clock and the broker's differ by more than message.timestamp"},
		{sarama.ErrClusterAuthorizationFailed, "IDEMPOTENT_WRITE"},
		{io.EOF, "unexpected"},
	} {
		err := publisher.Explain(publisher.Failure{Err: c.err}, cfg)
		require.ErrorIs(t, err, publisher.ErrFailed)
		require.ErrorIs(t, err, c.err)
		require.NotErrorIs(t, err, publisher.ErrRoute, "which would ask to hold the event")
		require.NotErrorIs(t, err, publisher.ErrRecord)
		require.ErrorContains(t, err, `topic "t" partition 3`)
		require.ErrorContains(t, err, c.want)
	}
}

// What the next publisher has to know about the topic of a failed record.
func TestFailuresNameWhatTheNextPublisherMustKnow(t *testing.T) {
	id := uuid.MustParse("0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a")
	for name, c := range map[string]struct {
		failure publisher.Failure
		want    any
	}{
		"batch too large":                      {publisher.Failure{Err: sarama.ErrMessageSizeTooLarge}, new(*publisher.NarrowError)},
		"alone, limit lowered just now":        {publisher.Failure{Err: sarama.ErrMessageSizeTooLarge, Alone: true, Limit: 500_000}, new(*publisher.NarrowError)},
		"alone, limit read and distrusted":     {publisher.Failure{Err: sarama.ErrMessageSizeTooLarge, Alone: true, Limit: 500_000, Distrusted: true}, new(*publisher.RefusedError)},
		"alone, limit unreadable":              {publisher.Failure{Err: sarama.ErrMessageSizeTooLarge, Alone: true}, new(*publisher.RefusedError)},
		"batch with a record it refuses":       {publisher.Failure{Err: sarama.ErrInvalidRecord}, new(*publisher.NarrowError)},
		"the record that it refuses":           {publisher.Failure{Err: sarama.ErrInvalidRecord, Alone: true, Limit: 500_000}, new(*publisher.RefusedError)},
		"batch that a policy refuses":          {publisher.Failure{Err: sarama.ErrPolicyViolation}, new(*publisher.NarrowError)},
		"the record that it forbids":           {publisher.Failure{Err: sarama.ErrPolicyViolation, Alone: true}, new(*publisher.RefusedError)},
		"a clock that is wrong, records alone": {publisher.Failure{Err: sarama.ErrInvalidTimestamp, Alone: true}, new(*publisher.LostRouteError)},
		"right taken away":                     {publisher.Failure{Err: sarama.ErrTopicAuthorizationFailed}, new(*publisher.LostRouteError)},
		"topic deleted, records alone":         {publisher.Failure{Err: sarama.ErrUnknownTopicOrPartition, Alone: true}, new(*publisher.LostRouteError)},
		"segment smaller than a batch":         {publisher.Failure{Err: sarama.ErrMessageSetSizeTooLarge}, new(*publisher.NarrowError)},
		"the producer, which has no subject":   {publisher.Failure{Err: sarama.ErrOutOfOrderSequenceNumber}, nil},
		"the cluster, which has none either":   {publisher.Failure{Err: sarama.ErrKafkaStorageError}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c.failure.ID = id
			err := publisher.Explain(c.failure, minimal())
			require.ErrorIs(t, err, c.failure.Err)
			var narrow *publisher.NarrowError
			var refused *publisher.RefusedError
			var lost *publisher.LostRouteError
			found := []bool{errors.As(err, &narrow), errors.As(err, &refused), errors.As(err, &lost)}
			switch c.want.(type) {
			case **publisher.NarrowError:
				require.Equal(t, []bool{true, false, false}, found)
				require.Equal(t, "t", narrow.Topic)
			case **publisher.RefusedError:
				require.Equal(t, []bool{false, true, false}, found)
				require.Equal(t, "t", refused.Topic)
				require.Equal(t, id, refused.ID)
			case **publisher.LostRouteError:
				require.Equal(t, []bool{false, false, true}, found)
				require.Equal(t, "t", lost.Route)
			default:
				require.Equal(t, []bool{false, false, false}, found)
			}
		})
	}
}

func TestJudgementOfTopics(t *testing.T) {
	three := []*sarama.PartitionMetadata{{}, {}, {}}
	for name, c := range map[string]struct {
		metadata *sarama.TopicMetadata
		limit    int
		narrow   bool
		want     string // of the refusal; empty when usable
	}{
		"fine":                 {&sarama.TopicMetadata{Partitions: three}, 1_048_588, false, ""},
		"limit unknown":        {&sarama.TopicMetadata{Partitions: three}, 0, false, ""},
		"limit equal":          {&sarama.TopicMetadata{Partitions: three}, 1_000_000, false, ""},
		"limit too small":      {&sarama.TopicMetadata{Partitions: three}, 999_999, true, ""},
		"operations unknown":   {&sarama.TopicMetadata{Partitions: three, TopicAuthorizedOperations: -2147483648}, 0, false, ""},
		"may write":            {&sarama.TopicMetadata{Partitions: three, TopicAuthorizedOperations: 1<<4 | 1<<8}, 0, false, ""},
		"no leader, but there": {&sarama.TopicMetadata{Partitions: three, Err: sarama.ErrLeaderNotAvailable}, 0, false, ""},
		"left out":             {nil, 0, false, "does not exist"},
		"unknown":              {&sarama.TopicMetadata{Err: sarama.ErrUnknownTopicOrPartition}, 0, false, "kafka-topics.sh --bootstrap-server kafka-1:9093 --create --topic t "},
		"unknown, first":       {&sarama.TopicMetadata{Err: sarama.ErrUnknownTopicOrPartition}, 0, false, "create it with `outboxctl topics create --config FILE` or with `kafka-topics.sh "},
		"invisible":            {&sarama.TopicMetadata{Err: sarama.ErrTopicAuthorizationFailed}, 0, false, "User:ANONYMOUS"},
		"read only":            {&sarama.TopicMetadata{Partitions: three, TopicAuthorizedOperations: 1<<3 | 1<<8}, 0, false, "may not be written"},
		"empty":                {&sarama.TopicMetadata{Err: sarama.ErrLeaderNotAvailable}, 0, false, "no partitions"},
	} {
		t.Run(name, func(t *testing.T) {
			partitions, narrow, refused, err := publisher.Judge("t", c.metadata, c.limit, minimal())
			require.NoError(t, err)
			require.Equal(t, c.narrow, narrow)
			if c.want == "" {
				require.Nil(t, refused)
				require.EqualValues(t, 3, partitions)
				return
			}
			require.ErrorIs(t, refused, publisher.ErrRoute)
			require.ErrorContains(t, refused, c.want)
			require.Equal(t, "t", refused.Topic)
			require.Equal(t, "t", refused.Route)
		})
	}
}
