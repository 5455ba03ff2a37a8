package publisher_test

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

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

// READ on it is what commits need.
func TestInspectCheckpointThatMayNotBeRead(t *testing.T) {
	c := newCluster(t, kfake.EnableSASL(), kfake.EnableACLs(), kfake.Superuser("PLAIN", "admin", "admin"),
		kfake.User("PLAIN", "relay", "secret", kfake.ACL{Resource: kmsg.ACLResourceTypeTopic, Name: publisher.DefaultCheckpointTopic,
			Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: kmsg.ACLOperationDescribe, Allow: true}))
	c.checkpointTopic()
	cfg := c.config()
	cfg.SASL, cfg.Insecure = publisher.SASL{Mechanism: "PLAIN", Username: "relay", Password: "secret"}, true
	var wrong *publisher.CheckpointError
	require.ErrorAs(t, publisher.InspectCheckpoint(t.Context(), cfg, false), &wrong)
	require.Contains(t, wrong.Cure, "--allow-principal User:relay --operation Read ")
}

// What exactly-once mode is refused is seen before it begins, with what gives it.
func TestInspectRights(t *testing.T) {
	allow := func(resource kmsg.ACLResourceType, name string, op kmsg.ACLOperation) kfake.ACL {
		return kfake.ACL{Resource: resource, Name: name, Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: op, Allow: true}
	}
	id := oneSlot().ID
	all := []kfake.ACL{
		allow(kmsg.ACLResourceTypeTransactionalId, id, kmsg.ACLOperationWrite),
		allow(kmsg.ACLResourceTypeGroup, id, kmsg.ACLOperationRead),
		allow(kmsg.ACLResourceTypeTopic, "shop.order", kmsg.ACLOperationWrite),
		allow(kmsg.ACLResourceTypeTopic, "shop.order", kmsg.ACLOperationRead),
		allow(kmsg.ACLResourceTypeTopic, "__consumer_offsets", kmsg.ACLOperationRead),
	}
	look := func(t *testing.T, rights []kfake.ACL, opts ...kfake.Opt) (refused []*publisher.Refusal, asked *cluster) {
		c := newCluster(t, append(opts, kfake.EnableSASL(), kfake.EnableACLs(), kfake.SeedTopics(1, "shop.order", "__consumer_offsets"),
			kfake.Superuser("PLAIN", "admin", "admin"), kfake.User("PLAIN", "relay", "secret", rights...))...)
		cfg := c.config()
		cfg.SASL, cfg.Insecure = publisher.SASL{Mechanism: "PLAIN", Username: "relay", Password: "secret"}, true
		id, group, half, err := publisher.InspectRights(within(t), cfg, oneSlot(), []string{"shop.order"})
		require.NoError(t, err)
		return []*publisher.Refusal{id, group, half}, c
	}
	without := func(missing ...int) (rights []kfake.ACL) {
		for i, right := range all {
			if !slices.Contains(missing, i) {
				rights = append(rights, right)
			}
		}
		return rights
	}
	const idOf, groupOf, half = 0, 1, 2
	for name, tc := range map[string]struct {
		rights []kfake.ACL
		cures  map[int]string
	}{
		"all":                        {all, nil},
		"no transactional id":        {without(0), map[int]string{idOf: "--operation Write --operation Describe --transactional-id " + id}},
		"described only":             {append(without(0), allow(kmsg.ACLResourceTypeTransactionalId, id, kmsg.ACLOperationDescribe)), map[int]string{idOf: "--transactional-id " + id}},
		"no group":                   {without(1), map[int]string{groupOf: "--operation Read --group " + id}},
		"no topic of events":         {without(3), map[int]string{half: "--operation Read --topic shop.order`"}},
		"no topic of offsets":        {without(4), map[int]string{half: "--operation Read --topic __consumer_offsets`"}},
		"nothing but events written": {without(0, 3, 4), map[int]string{idOf: "--transactional-id", half: "--topic __consumer_offsets --topic shop.order`"}},
	} {
		t.Run(name, func(t *testing.T) {
			refused, c := look(t, tc.rights)
			for i, refusal := range refused {
				if want, ok := tc.cures[i]; ok {
					require.NotNil(t, refusal, i)
					require.Error(t, refusal.Err)
					require.Contains(t, refusal.Cure, "kafka-acls.sh --bootstrap-server "+c.ListenAddrs()[0]+" --add --allow-principal User:relay --operation")
					require.Contains(t, refusal.Cure, want)
				} else {
					require.Nil(t, refusal, i)
				}
			}
		})
	}
	t.Run("brokers before 3.0", func(t *testing.T) {
		refused, _ := look(t, without(4), kfake.MaxVersions(kversion.V2_8_0()))
		require.Nil(t, refused[idOf])
		require.Nil(t, refused[groupOf])
		require.ErrorIs(t, refused[half].Err, sarama.ErrUnsupportedVersion)
		require.Contains(t, refused[half].Cure, "3.0")
	})
}

// Whoever looks changes nothing: not the producer that has a transaction open, nor the offsets.
func TestInspectRightsFencesNobody(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
	c.checkpointTopic()
	p := startTransactional(t, c.config(), oneSlot())
	for n := range 3 {
		transact(t, p, "a", 10*n, 10*n+9)
		_, _, _, err := publisher.InspectRights(within(t), c.config(), oneSlot(), []string{"shop.order"})
		require.NoError(t, err)
		require.NoError(t, p.Commit(within(t), at(uint64(10*n+10))))
	}
	require.NoError(t, p.Err())
	require.Equal(t, numbers(0, 29), c.committed("shop.order"))
}
