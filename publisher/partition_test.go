package publisher_test

import (
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/publisher"
)

// The vectors of UtilsTest.testMurmur2 in Apache Kafka.
func TestMurmur2IsKafkas(t *testing.T) {
	for key, want := range map[string]int32{
		"21":                         -973932308,
		"foobar":                     -790332482,
		"a-little-bit-long-string":   -985981536,
		"a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		require.Equal(t, want, int32(publisher.Murmur2([]byte(key))), key)
	}
}

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
