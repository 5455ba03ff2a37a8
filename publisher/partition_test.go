package publisher_test

import (
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/publisher"
)

func TestPartitionAgreesWithSarama(t *testing.T) {
	theirs := sarama.NewMurmur2Partitioner("t")
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SliceOf(rapid.Byte()).Draw(t, "key")
		partitions := rapid.Int32Range(1, 10_000).Draw(t, "partitions")
		want, err := theirs.Partition(&sarama.ProducerMessage{Key: sarama.ByteEncoder(key)}, partitions)
		require.NoError(t, err)
		require.Equal(t, want, publisher.Partition(key, partitions))
	})
}
