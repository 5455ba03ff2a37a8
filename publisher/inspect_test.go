package publisher_test

import (
	"context"
	"crypto/tls"
	"net"
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
		require.Equal(t, publisher.TopicReport{Name: "shop.missing", Missing: true}, reports[1], "Publish makes it")
	}
	cfg.Topics.Create, cfg.Topics.ReplicationFactor = false, 1
	reports, err := publisher.Inspect(t.Context(), cfg, []string{"shop.missing"})
	require.NoError(t, err)
	require.False(t, reports[0].Missing)
	require.ErrorIs(t, reports[0].Err, publisher.ErrRoute)
	require.ErrorContains(t, reports[0].Err, "or set topics.create: true; then start the relay again")
	require.ErrorContains(t, reports[0].Err, "--partitions 12 --replication-factor 1` (one that was there before: with the partitions that it had", "no more replicas than brokers")
	reports, err = publisher.Inspect(t.Context(), cfg, nil)
	require.NoError(t, err)
	require.Empty(t, reports)
}

func TestInspectReportsWhatIsRisky(t *testing.T) {
	c := newCluster(t)
	require.NoError(t, c.CreateTopic("shop.order", 1, map[string]string{
		"max.message.bytes": "500000", "min.insync.replicas": "2", "unclean.leader.election.enable": "true", "cleanup.policy": "compact,delete",
	}))
	reports, err := publisher.Inspect(t.Context(), c.config(), []string{"shop.order"})
	require.NoError(t, err)
	require.NoError(t, reports[0].Err, "it can be published to, slowly")
	require.True(t, reports[0].Narrow)
	require.Equal(t, 500_000, reports[0].Limit)
	require.Equal(t, 2, reports[0].MinInSync)
	require.True(t, reports[0].Unclean)
	require.True(t, reports[0].Compacted)
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

// A broker that speaks TLS to a relay that does not, or the other way round, closes
// the connection without a word.
func TestAMismatchOfTLSGetsAHint(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 64<<10)) // as a broker that finds no request in it
			_ = conn.Close()
		}
	}()
	cfg := publisher.Config{Brokers: []string{listener.Addr().String()}, Insecure: true, Routes: []publisher.Route{{Topic: "t"}}}
	_, err = publisher.Inspect(t.Context(), cfg, nil)
	require.ErrorContains(t, err, "does this listener want TLS, or SASL?")
	cfg.TLS, cfg.Insecure = &tls.Config{MinVersion: tls.VersionTLS12}, false
	_, err = publisher.Inspect(t.Context(), cfg, nil)
	require.ErrorContains(t, err, "is this a listener without it?")
}

func TestFixedTopics(t *testing.T) {
	cfg := publisher.Config{Brokers: []string{"k:9092"}, Insecure: true, Routes: []publisher.Route{
		{Match: publisher.Match{Namespace: "a"}, Topic: "one"}, {Match: publisher.Match{Namespace: "b"}, Topic: "one"}, {Match: publisher.Match{Namespace: "c"}, Topic: "two"}, {Topic: "{namespace}.x"},
	}}
	topics, err := cfg.FixedTopics()
	require.NoError(t, err)
	require.Equal(t, []string{"one", "two"}, topics)
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
		require.ErrorAs(t, publisher.InspectCheckpoint(t.Context(), cfg, false), &wrong)
		require.True(t, wrong.Missing)
		require.Contains(t, wrong.Cure, "--partitions 2")
	}
	cfg.Topics.Create, cfg.Topics.ReplicationFactor = false, 1
	require.NoError(t, publisher.InspectCheckpoint(t.Context(), cfg, true))
	require.NoError(t, publisher.InspectCheckpoint(t.Context(), cfg, false))
}
