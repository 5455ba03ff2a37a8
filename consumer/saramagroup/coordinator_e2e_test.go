//go:build e2e

package saramagroup_test

import (
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward/internal/pgserver"
)

// TestCoordinatorMovesWhileTheOldOneLives: as behind a rolling restart, when the leaders are
// those that are preferred again. The group goes on, with the members that it has. Three
// brokers take a minute to start beside other tests: E2E_FULL=1.
func TestCoordinatorMovesWhileTheOldOneLives(t *testing.T) {
	if os.Getenv("E2E_FULL") != "1" {
		t.Skip("long form: E2E_FULL=1")
	}
	t.Parallel()
	server, pool := startDatabase(t, durable)
	cluster := startKafka(t, 3)
	client, admin := administer(t, cluster)
	producer, err := kgo.NewClient(kgo.SeedBrokers(cluster.Addrs()...), kgo.UnknownTopicRetries(-1))
	require.NoError(t, err)
	defer producer.Close()
	coordinator := func() int32 {
		require.NoError(t, client.RefreshCoordinator("billing"))
		broker, err := client.Coordinator("billing")
		require.NoError(t, err)
		return broker.ID()
	}
	stop := runMember(t, cluster, pool, new(atomic.Bool))
	for n := 1; n <= 3; n++ {
		require.NoError(t, producer.ProduceSync(t.Context(), event(t, "o-1")).FirstErr())
		require.Eventually(t, func() bool {
			var effects int // the database's connections of before are broken
			return pool.QueryRow(t.Context(), "SELECT count(*) FROM effects").Scan(&effects) == nil && effects == n
		}, time.Minute, 50*time.Millisecond, "the group stands still behind move %d", n-1)
		before := coordinator()
		moveLeaders(t, client, admin, "__consumer_offsets")
		require.Eventually(t, func() bool { return coordinator() != before }, time.Minute, 100*time.Millisecond)
		require.NoError(t, server.Halt(t.Context(), pgserver.Immediate)) // sarama's session goes on with the new one: this begins another
		require.NoError(t, server.Resume(t.Context()))
	}
	require.NoError(t, stop())
}

// moveLeaders has each partition of a topic led by the next of its replicas.
func moveLeaders(t *testing.T, client sarama.Client, admin sarama.ClusterAdmin, name string) {
	t.Helper()
	described, err := admin.DescribeTopics([]string{name})
	require.NoError(t, err)
	partitions := described[0].Partitions
	to, all := make([][]int32, len(partitions)), make([]int32, len(partitions))
	for _, p := range partitions {
		to[p.ID], all[p.ID] = append(slices.Clone(p.Replicas[1:]), p.Replicas[0]), p.ID
	}
	require.NoError(t, admin.AlterPartitionReassignments(name, to))
	require.Eventually(t, func() bool {
		now, err := admin.DescribeTopics([]string{name})
		return err == nil && !slices.ContainsFunc(now[0].Partitions, func(p *sarama.PartitionMetadata) bool { return !slices.Equal(p.Replicas, to[p.ID]) })
	}, time.Minute, 100*time.Millisecond)
	_, err = admin.ElectLeaders(sarama.PreferredElection, map[string][]int32{name: all})
	require.NoError(t, err)
	require.NoError(t, client.RefreshMetadata(name))
}
