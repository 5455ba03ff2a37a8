package durable_test

import (
	"testing"

	"github.com/IBM/sarama"
	"github.com/rcrowley/go-metrics"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/onceward/onceward/consumer/saramagroup/internal/durable"
)

func TestWeakness(t *testing.T) {
	metrics.UseNilMetrics = true
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	asking, err := sarama.NewClient(cluster.ListenAddrs(), config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, asking.Close()) })
	admin, err := sarama.NewClusterAdminFromClient(asking)
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		replicas           int16
		inSync, unclean    string
		want, wantCureWord string
	}{
		"safe":    {3, "2", "false", "", ""},
		"few":     {1, "1", "false", "partition 0 has 1 replicas, want 3", "replication factor"},
		"one":     {3, "1", "false", "min.insync.replicas is 1", "min.insync.replicas=2"},
		"unclean": {3, "2", "true", "unclean.leader.election.enable is true", "enable=false"},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, admin.CreateTopic(name, &sarama.TopicDetail{
				NumPartitions: 1, ReplicationFactor: tc.replicas,
				ConfigEntries: map[string]*string{"min.insync.replicas": &tc.inSync, "unclean.leader.election.enable": &tc.unclean},
			}, false))
			why, cure, err := durable.Weakness(asking, name)
			require.NoError(t, err)
			require.Equal(t, tc.want, why)
			require.Contains(t, cure, tc.wantCureWord)
		})
	}
	_, _, err = durable.Weakness(asking, "missing")
	require.ErrorIs(t, err, sarama.ErrUnknownTopicOrPartition)
}
