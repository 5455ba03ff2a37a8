//go:build e2e

package saramagroup_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// TestLateCommitOfATopicMadeAnew: Kafka takes an offset of a topic, by its name, that was
// deleted and made anew meanwhile, and is longer by now. Nothing of it is skipped.
func TestLateCommitOfATopicMadeAnew(t *testing.T) {
	t.Parallel()
	_, pool := startDatabase(t, durable)
	cluster := startKafka(t, 1)
	client, admin := administer(t, cluster)
	committed := func() *sarama.OffsetFetchResponseBlock {
		answer, err := admin.ListConsumerGroupOffsets("billing", map[string][]int32{topic: {0}})
		require.NoError(t, err)
		return answer.GetBlock(topic, 0)
	}
	produce := func(n int) {
		producer, err := kgo.NewClient(kgo.SeedBrokers(cluster.Addrs()...), kgo.UnknownTopicRetries(-1))
		require.NoError(t, err)
		defer producer.Close()
		for range n {
			require.NoError(t, producer.ProduceSync(t.Context(), event(t, "o-1")).FirstErr())
		}
	}
	effects := 0
	consume := func(more int) {
		effects += more
		stop := runMember(t, cluster, pool, new(atomic.Bool))
		require.Eventually(t, func() bool {
			var n int
			require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM effects").Scan(&n))
			return n == effects
		}, time.Minute, 50*time.Millisecond)
		require.NoError(t, stop())
	}
	produce(5)
	consume(5)
	late := committed()
	require.EqualValues(t, 5, late.Offset)

	require.NoError(t, admin.DeleteTopic(topic))
	require.Eventually(t, func() bool {
		return admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, false) == nil
	}, time.Minute, 50*time.Millisecond)
	require.Eventually(t, func() bool { return committed().Offset < 0 }, time.Minute, 50*time.Millisecond)
	produce(8)
	offsets, err := sarama.NewOffsetManagerFromClient("billing", client)
	require.NoError(t, err)
	partition, err := offsets.ManagePartition(topic, 0)
	require.NoError(t, err)
	partition.MarkOffset(late.Offset, late.Metadata)
	require.NoError(t, partition.Close())
	require.NoError(t, offsets.Close())
	require.EqualValues(t, 5, committed().Offset)

	consume(8)
	require.EqualValues(t, 8, committed().Offset)
}
