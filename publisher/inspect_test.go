package publisher_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/onceward/onceward/publisher"
)

func TestInspectLooksWithoutCreating(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, "shop.order"))
	require.NoError(t, err)
	defer cluster.Close()
	cfg := publisher.Config{Brokers: cluster.ListenAddrs(), Insecure: true, Routes: []publisher.Route{{Topic: "{namespace}.{aggregate_type}"}}}
	cfg.Topics.Create = true
	for range 2 {
		reports, err := publisher.Inspect(t.Context(), cfg, []string{"shop.order", "shop.missing"})
		require.NoError(t, err)
		require.Equal(t, publisher.TopicReport{Name: "shop.order", Partitions: 3, Replicas: 1, MinInSync: 1, Limit: 1_048_588}, reports[0])
		require.ErrorIs(t, reports[1].Err, publisher.ErrRoute)
		require.ErrorContains(t, reports[1].Err, "does not exist")
	}
	reports, err := publisher.Inspect(t.Context(), cfg, nil)
	require.NoError(t, err)
	require.Empty(t, reports)
}

func TestInspectReportsWhatIsRisky(t *testing.T) {
	c := newCluster(t)
	require.NoError(t, c.CreateTopic("shop.order", 1, map[string]string{
		"max.message.bytes": "500000", "min.insync.replicas": "2", "unclean.leader.election.enable": "true",
	}))
	reports, err := publisher.Inspect(t.Context(), c.config(), []string{"shop.order"})
	require.NoError(t, err)
	require.NoError(t, reports[0].Err, "it can be published to, slowly")
	require.True(t, reports[0].Narrow)
	require.Equal(t, 500_000, reports[0].Limit)
	require.Equal(t, 2, reports[0].MinInSync)
	require.True(t, reports[0].Unclean)
	require.Contains(t, reports[0].Cure, "--entity-name shop.order --add-config max.message.bytes=1000000")
}

func TestInspectNamesBrokersThatDoNotAnswer(t *testing.T) {
	cfg := publisher.Config{Brokers: []string{"127.0.0.1:1"}, Insecure: true, Routes: []publisher.Route{{Topic: "t"}}}
	_, err := publisher.Inspect(t.Context(), cfg, []string{"t"})
	require.ErrorContains(t, err, "127.0.0.1:1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = publisher.Inspect(ctx, cfg, []string{"t"})
	require.ErrorIs(t, err, context.Canceled)
}

func TestTopicOf(t *testing.T) {
	cfg := publisher.Config{
		Brokers: []string{"k:9092"}, Topics: publisher.Topics{Allow: []string{"shop.*"}},
		Routes: []publisher.Route{{Match: publisher.Match{EventType: "Audit*"}, Topic: "shop.audit"}, {Match: publisher.Match{Namespace: "s*"}, Topic: "{namespace}.{aggregate_type}"}},
	}
	topic, err := cfg.TopicOf("shop", "order", "OrderPaid")
	require.NoError(t, err)
	require.Equal(t, "shop.order", topic)
	topic, err = cfg.TopicOf("shop", "order", "AuditDone")
	require.NoError(t, err)
	require.Equal(t, "shop.audit", topic)
	_, err = cfg.TopicOf("salon", "order", "OrderPaid")
	require.ErrorIs(t, err, publisher.ErrRoute)
	_, err = cfg.TopicOf("other", "order", "OrderPaid")
	require.ErrorIs(t, err, publisher.ErrRoute)
	_, err = publisher.Config{}.TopicOf("a", "b", "c")
	require.Error(t, err)
}

func TestInspectCheckpoint(t *testing.T) {
	c := newCluster(t)
	cfg := c.config()
	cfg.Topics.Create = true // a look makes nothing
	for range 2 {
		var wrong *publisher.CheckpointError
		require.ErrorAs(t, publisher.InspectCheckpoint(t.Context(), cfg), &wrong)
		require.True(t, wrong.Missing)
		require.Contains(t, wrong.Cure, "--partitions 2")
	}
	c.checkpointTopic()
	require.NoError(t, publisher.InspectCheckpoint(t.Context(), cfg))
}
