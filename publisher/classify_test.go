package publisher_test

import (
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/publisher"
)

func TestProducerErrorsSayWhatToDo(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{sarama.ErrMessageSizeTooLarge, "max_message_bytes = 123 of the relay"},
		{sarama.ErrTopicAuthorizationFailed, "grant WRITE"},
		{sarama.ErrOutOfOrderSequenceNumber, "a new producer cures it"},
		{sarama.ErrProducerFenced, "a new producer cures it"},
		{sarama.ErrNotEnoughReplicas, "in-sync replicas"},
		{sarama.ErrInvalidTimestamp, "unexpected"},
	} {
		err := publisher.Explain(&sarama.ProducerError{Msg: &sarama.ProducerMessage{Topic: "t", Partition: 3}, Err: c.err}, 123)
		require.ErrorIs(t, err, publisher.ErrFailed)
		require.ErrorIs(t, err, c.err)
		require.ErrorContains(t, err, `topic "t" partition 3`)
		require.ErrorContains(t, err, c.want)
	}
}

func TestJudgementOfTopics(t *testing.T) {
	three := []*sarama.PartitionMetadata{{}, {}, {}}
	for name, c := range map[string]struct {
		metadata *sarama.TopicMetadata
		limit    int
		want     string // of the refusal; empty when usable
	}{
		"fine":                 {&sarama.TopicMetadata{Partitions: three}, 1_048_588, ""},
		"limit unknown":        {&sarama.TopicMetadata{Partitions: three}, 0, ""},
		"limit equal":          {&sarama.TopicMetadata{Partitions: three}, 1_000_000, ""},
		"operations unknown":   {&sarama.TopicMetadata{Partitions: three, TopicAuthorizedOperations: -2147483648}, 0, ""},
		"may write":            {&sarama.TopicMetadata{Partitions: three, TopicAuthorizedOperations: 1<<4 | 1<<8}, 0, ""},
		"no leader, but there": {&sarama.TopicMetadata{Partitions: three, Err: sarama.ErrLeaderNotAvailable}, 0, ""},
		"left out":             {nil, 0, "does not exist"},
		"unknown":              {&sarama.TopicMetadata{Err: sarama.ErrUnknownTopicOrPartition}, 0, "kafka-topics.sh --bootstrap-server kafka-1:9093 --create --topic t "},
		"invisible":            {&sarama.TopicMetadata{Err: sarama.ErrTopicAuthorizationFailed}, 0, "User:ANONYMOUS"},
		"read only":            {&sarama.TopicMetadata{Partitions: three, TopicAuthorizedOperations: 1<<3 | 1<<8}, 0, "may not be written"},
		"empty":                {&sarama.TopicMetadata{Err: sarama.ErrLeaderNotAvailable}, 0, "no partitions"},
		"limit too small":      {&sarama.TopicMetadata{Partitions: three}, 999_999, "max.message.bytes=1000000"},
	} {
		t.Run(name, func(t *testing.T) {
			partitions, refused, err := publisher.Judge("t", c.metadata, c.limit, minimal())
			require.NoError(t, err)
			if c.want == "" {
				require.Nil(t, refused)
				require.EqualValues(t, 3, partitions)
				return
			}
			require.ErrorIs(t, refused, publisher.ErrRoute)
			require.ErrorContains(t, refused, c.want)
			require.Equal(t, "t", refused.Topic)
		})
	}
}
