package publisher_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/publisher"
)

// asked counts the requests of some kinds that a cluster gets.
func (c *cluster) asked(keys ...kmsg.Key) func() int {
	watch := c.Fault(kfake.Fault{Keys: keys, Observe: true, Count: -1})
	return watch.Hits
}

// Whoever is told which cluster to write to asks another one for nothing: no
// producer, no transaction, no topic.
func TestAnotherClusterIsNotWrittenTo(t *testing.T) {
	c := newCluster(t, kfake.ClusterID("other"), kfake.SeedTopics(1, "shop.order"))
	asked := c.asked(kmsg.InitProducerID, kmsg.CreateTopics, kmsg.Produce, kmsg.OffsetCommit)
	cfg := c.config()
	cfg.Cluster, cfg.Topics.Create = "mine", true
	_, err := publisher.New(within(t), cfg, func([]uint64) {})
	var other *publisher.OtherClusterError
	require.ErrorAs(t, err, &other)
	require.Equal(t, publisher.OtherClusterError{Known: "mine", Met: "other", Address: c.ListenAddrs()[0]}, *other)
	require.NotContains(t, err.Error(), "TLS", "nothing is wrong with the connection")
	_, err = publisher.NewTransactional(within(t), cfg, publisher.TransactionConfig{ID: "x", Group: "x"})
	require.ErrorIs(t, err, publisher.ErrOtherCluster)
	_, err = publisher.Inspect(within(t), cfg, []string{"shop.order"})
	require.ErrorIs(t, err, publisher.ErrOtherCluster)
	require.Zero(t, asked())

	cfg.Cluster = "other"
	p, _ := start(t, cfg)
	require.Equal(t, "other", p.Cluster())
}

// A cluster that says no id is never another one.
func TestAClusterWithoutAnID(t *testing.T) {
	c := newCluster(t, kfake.ClusterID(""), kfake.SeedTopics(1, "shop.order"))
	cfg := c.config()
	cfg.Cluster = "mine"
	p, _ := start(t, cfg)
	publishNumbered(t, p, "a", 0, 9)
	require.NoError(t, p.Flush(within(t)))
	require.Equal(t, "mine", p.Cluster())
}

// The names of the brokers begin to lead to another cluster while a publisher runs,
// and its connections end: it fails, and nothing is written there. So it is where
// it was told no cluster, and learned it at its start.
func TestNamesThatLeadToAnotherCluster(t *testing.T) {
	for name, told := range map[string]string{"told": "mine", "learned": ""} {
		t.Run(name, func(t *testing.T) {
			mine := newCluster(t, kfake.ClusterID("mine"), kfake.SeedTopics(1, "shop.order"))
			other := newCluster(t, kfake.ClusterID("other"), kfake.SeedTopics(1, "shop.order"))
			asked := other.asked(kmsg.InitProducerID, kmsg.CreateTopics, kmsg.Produce)
			network := newCuttingDialer()
			cfg := mine.config()
			cfg.Dial, cfg.Cluster = network.dial, told
			p, _ := start(t, cfg)
			publishNumbered(t, p, "a", 0, 9)
			require.NoError(t, p.Flush(within(t)))
			network.lead(func(ctx context.Context, kind, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, kind, other.ListenAddrs()[0])
			})
			for i := 10; i < 20; i++ {
				if err := p.Publish(within(t), event(uint64(i), "a", fmt.Sprint(i))); err != nil { // it has noticed
					require.ErrorIs(t, err, publisher.ErrOtherCluster)
					break
				}
			}
			waitFor(t, p.Failed())
			require.ErrorIs(t, p.Err(), publisher.ErrOtherCluster)
			require.ErrorIs(t, p.Err(), publisher.ErrFailed)
			require.Zero(t, asked())
			require.Zero(t, other.PartitionInfo("shop.order", 0).HighWatermark)
			require.Equal(t, numbers(0, 9), mine.values("shop.order"))
		})
	}
}

// lead makes every connection from now on by another dialer.
func (d *cuttingDialer) lead(dialer func(ctx context.Context, network, address string) (net.Conn, error)) {
	d.mu.Lock()
	d.dialer = dialer
	d.mu.Unlock()
	d.cutAll()
}

// A topic that is deleted and made anew is another one: two answers say so, and it
// is told once, with what the one before had acknowledged. The next publisher,
// which knows it from a table, tells it too.
func TestATopicMadeAnew(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		cfg.Memory = new(publisher.Memory)
		p, _ := start(t, cfg)
		publishNumbered(t, p, "a", 0, 9)
		require.NoError(t, p.Flush(t.Context()))
		known, remade := cfg.Memory.Topics(true)
		require.Len(t, known, 1)
		require.Empty(t, remade)
		first := known[0]
		require.Equal(t, "shop.order", first.Name)
		time.Sleep(publisher.DefaultTopicRefresh + time.Second)
		synctest.Wait()
		known, _ = cfg.Memory.Topics(false)
		require.Empty(t, known, "a count alone is not told unless it is asked for")
		known, _ = cfg.Memory.Topics(true)
		require.EqualValues(t, 10, known[0].Records)

		c.remake("shop.order")
		time.Sleep(publisher.DefaultTopicRefresh)
		synctest.Wait()
		known, remade = cfg.Memory.Topics(false)
		require.Empty(t, remade, "one answer")
		require.Empty(t, known)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		known, remade = cfg.Memory.Topics(false)
		require.Len(t, remade, 1)
		require.Equal(t, first.ID, remade[0].Before.ID)
		require.EqualValues(t, 10, remade[0].Before.Records)
		require.Equal(t, remade[0].ID, known[0].ID)
		require.Zero(t, known[0].Records)
		time.Sleep(3 * publisher.DefaultTopicRefresh)
		synctest.Wait()
		_, remade = cfg.Memory.Topics(false)
		require.Empty(t, remade, "once")
		require.NoError(t, p.Close())

		cfg.Memory.Know([]publisher.KnownTopic{first})
		p, _ = start(t, cfg)
		require.NoError(t, p.Publish(t.Context(), event(20, "a", "20")))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		_, remade = cfg.Memory.Topics(false)
		require.Len(t, remade, 1)
		require.Equal(t, first.ID, remade[0].Before.ID)
	}, kfake.SeedTopics(1, "shop.order"))
}

// remake deletes a topic and makes it anew, with one partition.
func (c *cluster) remake(name string) {
	c.t.Helper()
	gone := kmsg.NewPtrDeleteTopicsRequest()
	topic := kmsg.NewDeleteTopicsRequestTopic()
	topic.Topic = &name
	gone.Topics, gone.TopicNames = append(gone.Topics, topic), []string{name}
	require.NoError(c.t, kerr.ErrorForCode(admin(c, gone).Topics[0].ErrorCode))
	again := kmsg.NewPtrCreateTopicsRequest()
	made := kmsg.NewCreateTopicsRequestTopic()
	made.Topic, made.NumPartitions, made.ReplicationFactor = name, 1, 1
	again.Topics = append(again.Topics, made)
	require.NoError(c.t, kerr.ErrorForCode(admin(c, again).Topics[0].ErrorCode))
}
