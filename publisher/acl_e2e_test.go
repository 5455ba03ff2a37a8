//go:build e2e

package publisher_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/internal/kafkaserver"
	"github.com/onceward/onceward/publisher"
)

// strict starts a broker of a test's own, with its authorizer and with short
// lives of what is idle.
func strict(t *testing.T) *kafkaserver.Cluster {
	t.Helper()
	c, err := kafkaserver.Start(t.Context(), kafkaserver.Options{Settings: map[string]string{
		"authorizer.class.name":                    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"allow.everyone.if.no.acl.found":           "true",
		"connections.max.idle.ms":                  "1000",
		"producer.id.expiration.ms":                "1000",
		"producer.id.expiration.check.interval.ms": "200",
	}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop(context.Background())) })
	return c
}

// allowAll lets everybody do everything to a topic, now that it has rules.
func allowAll(t *testing.T, c *kafkaserver.Cluster, topic string) {
	t.Helper()
	create(t, c, topic, kmsg.ACLOperationAll, kmsg.ACLPermissionTypeAllow)
}

// revoke forbids writing to a topic.
func revoke(t *testing.T, c *kafkaserver.Cluster, topic string) {
	t.Helper()
	create(t, c, topic, kmsg.ACLOperationWrite, kmsg.ACLPermissionTypeDeny)
}

func create(t *testing.T, c *kafkaserver.Cluster, topic string, operation kmsg.ACLOperation, permission kmsg.ACLPermissionType) {
	t.Helper()
	rule := kmsg.NewCreateACLsRequestCreation()
	rule.ResourceType, rule.ResourceName, rule.Operation, rule.PermissionType = kmsg.ACLResourceTypeTopic, topic, operation, permission
	makeRule(t, c, rule)
}

func makeRule(t *testing.T, c *kafkaserver.Cluster, rule kmsg.CreateACLsRequestCreation) {
	t.Helper()
	request := kmsg.NewPtrCreateACLsRequest()
	rule.ResourcePatternType, rule.Principal, rule.Host = kmsg.ACLResourcePatternTypeLiteral, "User:*", "*"
	request.Creations = append(request.Creations, rule)
	require.NoError(t, kerr.ErrorForCode(ask(t, c.Addrs()[0], request).Results[0].ErrorCode))
}

// restore takes the prohibition back.
func restore(t *testing.T, c *kafkaserver.Cluster, topic string) {
	t.Helper()
	request := kmsg.NewPtrDeleteACLsRequest()
	filter := kmsg.NewDeleteACLsRequestFilter()
	filter.ResourceType, filter.ResourceName, filter.ResourcePatternType = kmsg.ACLResourceTypeTopic, &topic, kmsg.ACLResourcePatternTypeLiteral
	filter.Operation, filter.PermissionType = kmsg.ACLOperationWrite, kmsg.ACLPermissionTypeDeny
	request.Filters = append(request.Filters, filter)
	require.NoError(t, kerr.ErrorForCode(ask(t, c.Addrs()[0], request).Results[0].ErrorCode))
}

// K15: the right to write is taken away with records in flight, and given back.
// The producer fails with the route's name; the next one holds that route, the
// other goes on, and once the right is back everything arrives in order.
func TestRightRevokedInFlight(t *testing.T) {
	c := strict(t)
	for _, topic := range []string{"shop.order", "shop.other"} {
		require.NoError(t, c.CreateTopic(t.Context(), topic, 1, nil))
		allowAll(t, c, topic)
	}
	cfg := publisher.Config{Brokers: c.Addrs(), Routes: []publisher.Route{{Topic: "{namespace}.{aggregate_type}"}}}
	p, acks := start(t, cfg)
	require.NoError(t, numbered(within(t), p, 0, 9))
	var sent atomic.Int64
	sent.Store(10)
	failed := make(chan error, 1)
	go func() {
		var err error
		for ; err == nil; sent.Add(1) {
			err = numbered(within(t), p, int(sent.Load()), int(sent.Load()))
		}
		failed <- err
	}()
	revoke(t, c, "shop.order")
	err := <-failed
	var lost *publisher.LostRouteError
	require.ErrorAs(t, err, &lost)
	require.Equal(t, "shop.order", lost.Route)
	require.ErrorContains(t, err, "grant WRITE")
	require.NoError(t, p.Close())
	done := len(acks.all())

	next, _ := start(t, cfg)
	err = next.Publish(within(t), event(uint64(done), "a", "x"))
	var route *publisher.RouteError
	require.ErrorAs(t, err, &route)
	require.Equal(t, "shop.order", route.Route)
	require.Contains(t, route.Advice(), "kafka-acls.sh")
	other := row("a", "x")
	other.AggregateType = "other"
	require.NoError(t, next.Publish(within(t), publisher.Event{Row: other}))
	require.NoError(t, next.Flush(within(t)))
	restore(t, c, "shop.order")
	require.Eventually(t, func() bool { return numbered(within(t), next, done, done) == nil }, patience, 50*time.Millisecond)
	require.NoError(t, numbered(within(t), next, done+1, done+50))
	require.NoError(t, next.Close())
	require.Equal(t, numbers(0, done+50), readCommitted(t, "shop.order", kgo.SeedBrokers(c.Addrs()...)))
}

// A half committed transaction is seen by what of it may be read. Where nothing says that it
// is one, and something may not be read, the log says that.
func TestHalfCommittedBehindARight(t *testing.T) {
	c := strict(t)
	for _, topic := range []string{"shop.order", "shop.other"} {
		require.NoError(t, c.CreateTopic(t.Context(), topic, 1, nil))
	}
	require.NoError(t, c.CreateTopic(t.Context(), publisher.DefaultCheckpointTopic, 2, map[string]string{"cleanup.policy": "compact"}))
	var logged logLines
	cfg := publisher.Config{Brokers: c.Addrs(), Routes: []publisher.Route{{Topic: "{namespace}.{aggregate_type}"}}, Logger: logged.logger()}
	slot := publisher.TransactionConfig{ID: "slot", Group: "slot"}
	client, err := kgo.NewClient(kgo.SeedBrokers(c.Addrs()...))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	opens := func(value string) {
		p := startTransactional(t, cfg, slot)
		require.NoError(t, p.Publish(within(t), event(1, "a", value)))
		other := row("a", value)
		other.AggregateType = "other"
		require.NoError(t, p.Publish(within(t), publisher.Event{Row: other}))
		for _, topic := range []string{"shop.order", "shop.other"} {
			require.Eventually(t, func() bool {
				return endOffset(within(t), t, client, topic, 0) > endOffset(within(t), t, client, topic, 1)
			}, patience, 10*time.Millisecond)
		}
	}
	create(t, c, "__consumer_offsets", kmsg.ACLOperationRead, kmsg.ACLPermissionTypeDeny)
	create(t, c, "__consumer_offsets", kmsg.ACLOperationDescribe, kmsg.ACLPermissionTypeAllow)
	opens("1")
	require.NoError(t, startTransactional(t, cfg, slot).Close())
	require.Contains(t, logged.String(), "cannot be seen")
	opens("2")
	require.NoError(t, c.CommitHalf(within(t), slot.ID, "shop.order"))
	require.NoError(t, startTransactional(t, cfg, slot).Close())
	require.Contains(t, logged.String(), "committed what was left")
	require.Equal(t, []string{"2"}, readCommitted(t, "shop.other", kgo.SeedBrokers(c.Addrs()...)))
}

// What exactly-once mode is refused is seen without a change: Kafka makes none of its own topics for it,
// and who has a transaction open commits it. What is printed gives it.
func TestRightsThatAreRefused(t *testing.T) {
	c := strict(t)
	require.NoError(t, c.CreateTopic(t.Context(), "shop.order", 1, nil))
	cfg := publisher.Config{Brokers: c.Addrs(), Routes: []publisher.Route{{Topic: "{namespace}.{aggregate_type}"}}}
	slot := publisher.TransactionConfig{ID: "slot", Group: "slot"}
	cures := func() (found []string) {
		t.Helper()
		id, group, half, err := publisher.InspectRights(within(t), cfg, slot, []string{"shop.order"})
		require.NoError(t, err)
		for _, refused := range []*publisher.Refusal{id, group, half} {
			if refused != nil {
				found = append(found, refused.Cure)
			}
		}
		return found
	}
	require.Empty(t, cures())
	for _, topic := range ask(t, c.Addrs()[0], kmsg.NewPtrMetadataRequest()).Topics {
		require.Equal(t, "shop.order", *topic.Topic)
	}
	require.NoError(t, c.CreateTopic(t.Context(), publisher.DefaultCheckpointTopic, 2, map[string]string{"cleanup.policy": "compact"}))
	p := startTransactional(t, cfg, slot)
	require.NoError(t, p.Publish(within(t), event(1, "a", "1")))
	require.Empty(t, cures())
	require.NoError(t, p.Commit(within(t), publisher.Position{Order: 1}))
	require.Empty(t, cures(), "by the coordinator's answer")
	require.NoError(t, p.Close())
	require.Equal(t, []string{"1"}, readCommitted(t, "shop.order", kgo.SeedBrokers(c.Addrs()...)))

	var want []string
	for _, of := range []struct {
		resource kmsg.ACLResourceType
		name     string
		cure     string // in the place of the last one, for topics
	}{
		{kmsg.ACLResourceTypeTransactionalId, slot.ID, "--operation Write --operation Describe --transactional-id slot`"},
		{kmsg.ACLResourceTypeGroup, slot.Group, "--operation Read --group slot`"},
		{kmsg.ACLResourceTypeTopic, "shop.order", "--operation Read --topic shop.order`"},
		{kmsg.ACLResourceTypeTopic, "__consumer_offsets", "--operation Read --topic __consumer_offsets --topic shop.order`"},
	} {
		makeRule(t, c, kmsg.CreateACLsRequestCreation{ // and nothing else may be done
			ResourceType: of.resource, ResourceName: of.name, Operation: kmsg.ACLOperationDescribe, PermissionType: kmsg.ACLPermissionTypeAllow,
		})
		want = append(want[:min(len(want), 2)], " --add --allow-principal User:ANONYMOUS "+of.cure)
		require.Eventually(t, func() bool { return slices.EqualFunc(cures(), want, strings.HasSuffix) }, patience, 50*time.Millisecond, "%q", want)
	}
	programs := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(programs, "kafka-acls.sh"), []byte(c.Scripts()["kafka-acls.sh"]), 0o700))
	for _, cure := range cures() {
		said, err := exec.CommandContext(t.Context(), "sh", "-c", programs+"/"+strings.Split(cure, "`")[1]).CombinedOutput()
		require.NoError(t, err, "%s", said)
	}
	require.Eventually(t, func() bool { return len(cures()) == 0 }, patience, 50*time.Millisecond)
}

// K17 and K18: a broker closes idle connections and forgets idle producers. An
// event after the pause is published all the same, once, by the same producer
// or, where the broker insists, by the next one.
func TestIdleForLongerThanTheBrokerRemembers(t *testing.T) {
	c := strict(t)
	require.NoError(t, c.CreateTopic(t.Context(), "shop.order", 1, nil))
	cfg := publisher.Config{Brokers: c.Addrs(), Routes: []publisher.Route{{Topic: "{namespace}.{aggregate_type}"}}}
	p, acks := start(t, cfg)
	const pauses = 3
	for i := range pauses {
		require.NoError(t, numbered(within(t), p, 10*i, 10*i+9))
		require.Eventually(t, func() bool { return forgotten(t, c, "shop.order") }, patience, 100*time.Millisecond)
	}
	require.NoError(t, numbered(within(t), p, 10*pauses, 10*pauses+9))
	require.Len(t, acks.all(), 10*pauses+10)
	require.Equal(t, numbers(0, 10*pauses+9), readCommitted(t, "shop.order", kgo.SeedBrokers(c.Addrs()...)))
}

// forgotten reports whether the broker keeps no producer's state for the
// topic's partition.
func forgotten(t *testing.T, c *kafkaserver.Cluster, name string) bool {
	t.Helper()
	request := kmsg.NewPtrDescribeProducersRequest()
	topic := kmsg.NewDescribeProducersRequestTopic()
	topic.Topic, topic.Partitions = name, []int32{0}
	request.Topics = append(request.Topics, topic)
	found := ask(t, c.Addrs()[0], request).Topics[0].Partitions[0]
	require.NoError(t, kerr.ErrorForCode(found.ErrorCode))
	return len(found.ActiveProducers) == 0
}
