package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/publisher"
)

// holdProduce keeps produce requests unanswered, until release lets them and
// all later ones through. Arrived is closed when the first one has come.
func (c *cluster) holdProduce() (release func()) {
	release, _ = c.holdProduceSeen()
	return release
}

func (c *cluster) holdProduceSeen() (release func(), arrived <-chan struct{}) {
	open, first := make(chan struct{}), make(chan struct{})
	var once, seen sync.Once
	release = func() { once.Do(func() { close(open) }) }
	c.t.Cleanup(release)
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		seen.Do(func() { close(first) })
		select {
		case <-open:
			c.DropControl()
		default:
			c.SleepControl(func() { <-open })
		}
		return nil, nil, false
	})
	return release, first
}

// silence makes the cluster read every request and answer none.
func (c *cluster) silence() {
	c.Control(func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		return nil, nil, true
	})
}

func waitFor(t testing.TB, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		require.FailNow(t, "waited for too long")
	}
}

func TestUnknownTopicIsRefusedAndHeals(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.other"))
	p, acks := start(t, c.config())
	err := p.Publish(within(t), event(1, "a", "1"))
	var route *publisher.RouteError
	require.ErrorAs(t, err, &route)
	require.ErrorIs(t, err, publisher.ErrRoute)
	require.Equal(t, "shop.order", route.Topic)
	require.Equal(t, "shop.order", route.Route)
	require.Contains(t, route.Advice(), "kafka-topics.sh --bootstrap-server "+c.ListenAddrs()[0]+" --create --topic shop.order")
	require.Contains(t, route.Advice(), "topics.create: true")

	other := row("a", "x")
	other.AggregateType = "other"
	require.NoError(t, p.Publish(within(t), publisher.Event{Row: other, Tag: 2}), "other topics flow")
	require.NoError(t, p.Flush(within(t)))

	require.NoError(t, c.CreateTopic("shop.order", 3, nil))
	require.Eventually(t, func() bool { return p.Publish(within(t), event(1, "a", "1")) == nil }, patience, 50*time.Millisecond)
	require.NoError(t, p.Flush(within(t)))
	require.Equal(t, []uint64{2, 1}, acks.all())
	require.Equal(t, []string{"1"}, c.values("shop.order"))
}

func TestMissingTopicIsCreatedWhenAsked(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(3))
	cfg := c.config()
	cfg.Topics = publisher.Topics{Create: true, Partitions: 4, ReplicationFactor: 2}
	p, acks := start(t, cfg)
	once(t, p, event(1, "a", "1"))
	publishNumbered(t, p, "a", 2, 3)
	require.NoError(t, p.Flush(within(t)))
	require.Len(t, acks.all(), 3)
	require.Len(t, c.PartitionInfos("shop.order"), 4)
	require.Equal(t, 2, c.TopicInfo("shop.order").NumReplicas)
}

func TestTopicThatCannotBeCreatedSaysWhy(t *testing.T) {
	for name, c := range map[string]struct {
		replicas     int16
		acls         []kfake.ACL
		reason, cure string
	}{
		"no right": {1, nil, "may not create it", "--allow-principal User:relay --operation Create --topic shop.order"},
		"too few brokers": {
			5, []kfake.ACL{{Resource: kmsg.ACLResourceTypeCluster, Name: "kafka-cluster", Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: kmsg.ACLOperationCreate, Allow: true}},
			"could not be created", "set topics.replication_factor of the relay's configuration, which is 5, to 1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			acls := slices.Concat(c.acls, []kfake.ACL{{
				Resource: kmsg.ACLResourceTypeTopic, Name: "shop.", Pattern: kmsg.ACLResourcePatternTypePrefixed, Operation: kmsg.ACLOperationWrite, Allow: true,
			}})
			cluster := newCluster(t, kfake.EnableSASL(), kfake.EnableACLs(), kfake.SeedTopics(1, "shop.other"),
				kfake.Superuser("PLAIN", "admin", "admin"), kfake.User("PLAIN", "relay", "secret", acls...))
			cfg := cluster.config()
			cfg.SASL, cfg.Insecure = publisher.SASL{Mechanism: "PLAIN", Username: "relay", Password: "secret"}, true
			cfg.Topics = publisher.Topics{Create: true, Partitions: 4, ReplicationFactor: c.replicas}
			p, _ := start(t, cfg)
			route := settled(t, p, event(1, "a", "1"))
			require.Equal(t, "shop.order", route.Route)
			require.Contains(t, route.Reason, c.reason)
			require.Contains(t, route.Advice(), c.cure)
			require.Contains(t, route.Advice(), "kafka-topics.sh --bootstrap-server "+cluster.ListenAddrs()[0]+" --create --topic shop.order --partitions 4")
			other := row("a", "x")
			other.AggregateType = "other"
			require.NoError(t, p.Publish(within(t), publisher.Event{Row: other}), "other routes flow")
			require.NoError(t, p.Flush(within(t)))
		})
	}
}

func TestUnreadableLimitIsSaidOnce(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order", "shop.other"))
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeConfigs}, Err: kerr.TopicAuthorizationFailed, Count: -1})
	logged := &logLines{}
	cfg := c.config()
	cfg.Logger = logged.logger()
	p, _ := start(t, cfg)
	publishNumbered(t, p, "a", 1, 1)
	other := row("a", "x")
	other.AggregateType = "other"
	require.NoError(t, p.Publish(within(t), publisher.Event{Row: other}))
	require.NoError(t, p.Flush(within(t)))
	require.Equal(t, 1, strings.Count(logged.String(), "DESCRIBE_CONFIGS"))
}

func TestForbiddenTopicIsRefusedBeforeItFails(t *testing.T) {
	allow := func(op kmsg.ACLOperation) kfake.ACL {
		return kfake.ACL{Resource: kmsg.ACLResourceTypeTopic, Name: "shop.", Pattern: kmsg.ACLResourcePatternTypePrefixed, Operation: op, Allow: true}
	}
	elsewhere := allow(kmsg.ACLOperationWrite) // what the producer id needs
	elsewhere.Name = "other."
	for name, acls := range map[string][]kfake.ACL{
		"invisible":   {elsewhere},
		"not written": {elsewhere, allow(kmsg.ACLOperationDescribe), allow(kmsg.ACLOperationRead)},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, kfake.EnableSASL(), kfake.EnableACLs(), kfake.SeedTopics(1, "shop.order"),
				kfake.Superuser("PLAIN", "admin", "admin"), kfake.User("PLAIN", "relay", "secret", acls...))
			cfg := c.config()
			cfg.SASL = publisher.SASL{Mechanism: "PLAIN", Username: "relay", Password: "secret"}
			cfg.Insecure = true
			p, _ := start(t, cfg)
			err := p.Publish(within(t), event(1, "a", "1"))
			require.ErrorIs(t, err, publisher.ErrRoute)
			require.ErrorContains(t, err, "--allow-principal User:relay --operation Write")
			require.NoError(t, p.Err(), "refused, not failed")
		})
	}
}

// refuseProduce answers the produce request that holds the n-th record with an
// error that sarama does not retry.
func (c *cluster) refuseProduce(n int, err *kerr.Error) *kfake.FaultHandle {
	var seen atomic.Int64
	return c.Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.Produce}, Topic: "shop.order", Err: err,
		When: func(request kmsg.Request) bool {
			records := produced(request.(*kmsg.ProduceRequest))
			after := seen.Add(int64(records))
			return after > int64(n) && after-int64(records) <= int64(n)
		},
	})
}

// produced counts the records of a produce request.
func produced(request *kmsg.ProduceRequest) int {
	n := 0
	for _, topic := range request.Topics {
		for _, partition := range topic.Partitions {
			var batch kmsg.RecordBatch
			if batch.ReadFrom(partition.Records) == nil {
				n += int(batch.NumRecords)
			}
		}
	}
	return n
}

// After the first error nothing more may reach the broker, so that publishing
// again from the first event without an acknowledgement keeps the order of
// first occurrences. Many rounds, because what is guarded against is a race
// between the error and the partition's next batch.
func TestFailureStopsTheWireAndARewindKeepsOrder(t *testing.T) {
	for round := range 30 {
		c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
		refused := c.refuseProduce(20+7*round, kerr.InvalidRecord)
		p, acks := start(t, c.config())
		const last = 500
		ctx := within(t)
		var err error
		for i := 0; i <= last && err == nil; i++ {
			err = p.Publish(ctx, event(uint64(i), "a", fmt.Sprint(i)))
		}
		if err == nil {
			err = p.Flush(ctx)
		}
		require.ErrorIs(t, err, publisher.ErrFailed)
		waitFor(t, p.Failed())
		require.ErrorIs(t, p.Publish(ctx, event(0, "a", "x")), publisher.ErrFailed)
		require.ErrorIs(t, p.Flush(ctx), publisher.ErrFailed)
		require.NoError(t, p.Close())
		require.Equal(t, 1, refused.Hits())

		before := c.values("shop.order")
		require.Equal(t, numbers(0, len(before)-1), before, "a prefix: nothing passed the failed batch")
		require.LessOrEqual(t, len(acks.all()), len(before))

		next, _ := start(t, c.config())
		publishNumbered(t, next, "a", len(acks.all()), last)
		require.NoError(t, next.Flush(ctx))
		require.NoError(t, next.Close())
		require.Equal(t, numbers(0, last), firsts(c.values("shop.order")))
	}
}

// firsts keeps the first occurrence of each value.
func firsts(values []string) []string {
	var kept []string
	for _, v := range values {
		if !slices.Contains(kept, v) {
			kept = append(kept, v)
		}
	}
	return kept
}

// inOrder is the check of the guarantee, which the defect must not pass.
func inOrder(values []string, last int) error {
	if got := firsts(values); !slices.Equal(got, numbers(0, last)) {
		return fmt.Errorf("first occurrences out of order: %v", got)
	}
	return nil
}

// The defect of the naive relay: few retries, and what failed is sent again.
// Event 5 is alone on the wire when it is refused, with its successors behind.
func TestCheckFindsResentMessages(t *testing.T) {
	const failing, last = 5, 20
	run := func(cfg publisher.Config, c *cluster) (*publisher.Publisher, *acks) {
		p, acks := start(t, cfg)
		publishNumbered(t, p, "a", 0, failing-1)
		require.NoError(t, p.Flush(within(t)))
		c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.InvalidRecord})
		release, arrived := c.holdProduceSeen()
		publishNumbered(t, p, "a", failing, failing)
		waitFor(t, arrived)
		publishNumbered(t, p, "a", failing+1, last)
		release()
		return p, acks
	}
	t.Run("ours", func(t *testing.T) {
		c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
		p, acks := run(c.config(), c)
		require.ErrorIs(t, p.Flush(within(t)), publisher.ErrFailed)
		require.NoError(t, p.Close())
		require.Equal(t, numbers(0, failing-1), c.values("shop.order"), "no successor of the refused event left")
		next, _ := start(t, c.config())
		publishNumbered(t, next, "a", len(acks.all()), last)
		require.NoError(t, next.Flush(within(t)))
		require.NoError(t, inOrder(c.values("shop.order"), last))
	})
	t.Run("defect", func(t *testing.T) {
		c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
		cfg := publisher.WithDefect(c.config())
		_, acks := run(cfg, c)
		require.Eventually(t, func() bool { return len(acks.all()) == last+1 }, patience, time.Millisecond)
		require.ErrorContains(t, inOrder(c.values("shop.order"), last), "out of order")
	})
}

func TestTooLargeForTheBrokerIsExplained(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.MessageTooLarge})
	p, _ := start(t, c.config())
	require.NoError(t, p.Publish(within(t), event(1, "a", "1")))
	waitFor(t, p.Failed())
	require.ErrorIs(t, p.Err(), sarama.ErrMessageSizeTooLarge)
	require.ErrorContains(t, p.Err(), "max_message_bytes = 1000000")
}

func TestRetriableErrorsAreRiddenOut(t *testing.T) {
	for _, code := range []*kerr.Error{kerr.NotLeaderForPartition, kerr.NotEnoughReplicas, kerr.RequestTimedOut, kerr.NotEnoughReplicasAfterAppend, kerr.KafkaStorageError} {
		t.Run(code.Message, func(t *testing.T) {
			c := newCluster(t, kfake.SeedTopics(2, "shop.order"))
			c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: code, Count: 2})
			p, acks := start(t, c.config())
			publishNumbered(t, p, "a", 0, 300)
			require.NoError(t, p.Flush(within(t)))
			require.Len(t, acks.all(), 301)
			require.Equal(t, numbers(0, 300), c.values("shop.order"), "neither twice nor out of order")
		})
	}
}

func TestCloseReportsLateAcknowledgements(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
	release, arrived := c.holdProduceSeen()
	p, acks := start(t, c.config())
	publishNumbered(t, p, "a", 1, 10)
	waitFor(t, arrived)
	time.AfterFunc(100*time.Millisecond, release)
	require.NoError(t, p.Close())
	require.Len(t, acks.all(), 10)
	require.Equal(t, numbers(1, 10), c.values("shop.order"))
	require.ErrorIs(t, p.Publish(within(t), event(1, "a", "1")), publisher.ErrClosed)
	require.NoError(t, p.Close(), "again")
}

func TestNewPartitionsAreUsedOnceTheOldAreDrained(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
	logged := &logLines{}
	cfg := c.config()
	cfg.TopicRefresh = time.Second
	cfg.Logger = logged.logger()
	p, _ := start(t, cfg)
	publishNumbered(t, p, "key-2", 0, 9)
	c.addPartitions("shop.order", 8)
	i := 10
	require.Eventually(t, func() bool {
		publishNumbered(t, p, "key-2", i, i)
		i++
		return strings.Contains(logged.String(), "partition count of a topic changed")
	}, patience, 50*time.Millisecond)
	require.NoError(t, p.Flush(within(t)))
	records := c.read("shop.order")
	at := publisher.Partition([]byte("key-2"), 8)
	require.NotZero(t, at)
	require.NotEmpty(t, records[at])
	require.Equal(t, numbers(0, i-1), c.values("shop.order"), "all before the change in the old partition, all after in the new")
}

// Nothing is placed by the new count while anything placed by the old one is on
// its way.
func TestNewPartitionsWaitForWhatIsInFlight(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
	cfg := c.config()
	cfg.TopicRefresh = time.Second
	p, acks := start(t, cfg)
	publishNumbered(t, p, "key-2", 0, 0)
	require.NoError(t, p.Flush(within(t)))
	// Sent again and again, so that the look-ups on the same connection pass.
	stuck := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicas, Count: -1})
	publishNumbered(t, p, "key-2", 1, 1)
	c.addPartitions("shop.order", 8)
	sent := 2
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(within(t), 100*time.Millisecond)
		defer cancel()
		err := p.Publish(ctx, event(uint64(sent), "key-2", fmt.Sprint(sent)))
		if err == nil {
			sent++
		}
		return errors.Is(err, context.DeadlineExceeded)
	}, patience, 50*time.Millisecond)
	require.Len(t, acks.all(), 1)
	stuck.Remove()
	publishNumbered(t, p, "key-2", sent, sent)
	require.NoError(t, p.Flush(within(t)))
	require.Len(t, c.read("shop.order")[0], sent, "all that was handed over before the change was seen")
	require.Equal(t, numbers(0, sent), c.values("shop.order"))
}

// With the policy halt the keys stay where they are: nothing is placed by the
// new count, and a relay that is started again goes on with it.
func TestPartitionChangeCanHalt(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order", "shop.other"))
	cfg := c.config()
	cfg.TopicRefresh = time.Second
	cfg.PartitionChange = publisher.PartitionsHalt
	p, _ := start(t, cfg)
	publishNumbered(t, p, "key-2", 0, 9)
	c.addPartitions("shop.order", 8)
	i := 10
	var err error
	require.Eventually(t, func() bool {
		err = p.Publish(within(t), event(uint64(i), "key-2", fmt.Sprint(i)))
		if err == nil {
			i++
		}
		return err != nil
	}, patience, 50*time.Millisecond)
	var changed *publisher.PartitionError
	require.ErrorAs(t, err, &changed)
	require.ErrorIs(t, err, publisher.ErrPartitions)
	require.NotErrorIs(t, err, publisher.ErrRoute, "it does not heal by itself")
	require.Equal(t, publisher.PartitionError{Topic: "shop.order", From: 1, To: 8}, *changed)
	require.ErrorContains(t, err, "partition_change: go-on")
	require.ErrorIs(t, p.Publish(within(t), event(0, "key-2", "x")), publisher.ErrPartitions, "and stays so")
	require.NoError(t, p.Flush(within(t)))
	require.NoError(t, p.Close())
	require.Equal(t, numbers(0, i-1), c.values("shop.order"))
	require.Len(t, c.read("shop.order")[0], i, "all in the old partition")

	next, _ := start(t, cfg)
	publishNumbered(t, next, "key-2", i, i)
	require.NoError(t, next.Flush(within(t)))
	require.Len(t, c.read("shop.order")[publisher.Partition([]byte("key-2"), 8)], 1)
}

func TestNewExplainsWhatIsWrong(t *testing.T) {
	c := newCluster(t, kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-512", "relay", "secret"))
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	dead := free.Addr().String()
	require.NoError(t, free.Close())

	cfg := c.config()
	cfg.Brokers = []string{dead}
	_, err = publisher.New(within(t), cfg, func([]uint64) {})
	require.ErrorContains(t, err, "no broker can be used")
	require.ErrorContains(t, err, dead)

	cfg = c.config()
	cfg.SASL = publisher.SASL{Mechanism: "SCRAM-SHA-512", Username: "relay", Password: "hunter2"}
	cfg.Insecure = true
	_, err = publisher.New(within(t), cfg, func([]uint64) {})
	require.ErrorContains(t, err, c.ListenAddrs()[0])
	require.NotContains(t, err.Error(), "hunter2")

	cfg.SASL.Password = "secret"
	cfg.Brokers = append([]string{dead}, c.ListenAddrs()...)
	p, err := publisher.New(within(t), cfg, func([]uint64) {})
	require.NoError(t, err, "one dead bootstrap address does no harm")
	require.NoError(t, p.Close())

	forbidden := newCluster(t, kfake.EnableSASL(), kfake.EnableACLs(), kfake.Superuser("PLAIN", "admin", "admin"), kfake.User("PLAIN", "relay", "secret"))
	denied := forbidden.config()
	denied.SASL, denied.Insecure = publisher.SASL{Mechanism: "PLAIN", Username: "relay", Password: "secret"}, true
	_, err = publisher.New(within(t), denied, func([]uint64) {})
	require.ErrorIs(t, err, sarama.ErrClusterAuthorizationFailed)
	require.ErrorContains(t, err, "grant WRITE")

	ctx, cancel := context.WithCancel(within(t))
	cancel()
	_, err = publisher.New(ctx, cfg, func([]uint64) {})
	require.ErrorIs(t, err, context.Canceled)
}
