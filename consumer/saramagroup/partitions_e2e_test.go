//go:build e2e

package saramagroup_test

import (
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// TestPartitionsThatATopicGets: while a group runs, its topic gets a partition; an event in it has
// its effect long before sarama, left alone, would have looked. It takes two looks of a minute
// each: E2E_FULL=1.
func TestPartitionsThatATopicGets(t *testing.T) {
	if os.Getenv("E2E_FULL") != "1" {
		t.Skip("long form: E2E_FULL=1")
	}
	t.Parallel()
	_, pool := startDatabase(t, durable)
	cluster := startKafka(t, 1)
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.Addrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	defer client.Close()
	stop := runMember(t, cluster, pool, new(atomic.Bool))
	applied := func(n int) func() bool {
		return func() bool {
			var effects int
			require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM effects").Scan(&effects))
			return effects == n
		}
	}
	event := func(partition int32) *kgo.Record {
		key, err := outbox.NewKey("shop")
		require.NoError(t, err)
		return &kgo.Record{
			Topic: topic, Partition: partition, Key: []byte("o-1"), Value: []byte("good"), Headers: []kgo.RecordHeader{
				{Key: outbox.HeaderKey, Value: []byte(key.String())}, {Key: record.HeaderEventType, Value: []byte("Paid")},
			},
		}
	}
	require.NoError(t, client.ProduceSync(t.Context(), event(0)).FirstErr())
	require.Eventually(t, applied(1), time.Minute, 20*time.Millisecond)

	_, admin := administer(t, cluster)
	require.NoError(t, admin.CreatePartitions(topic, 2, nil, false))
	second := event(1)
	require.Eventually(t, func() bool { // refused here, until the client knows of the partition
		client.ForceMetadataRefresh()
		return client.ProduceSync(t.Context(), second).FirstErr() == nil
	}, time.Minute, 100*time.Millisecond)
	require.Eventually(t, applied(2), 4*time.Minute, 100*time.Millisecond)
	require.NoError(t, stop())
}
