package publisher_test

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/publisher"
)

// lead moves all partitions of a topic to a node.
func (c *cluster) lead(topic string, node int32) {
	c.t.Helper()
	for partition := range int32(len(c.PartitionInfos(topic))) {
		require.NoError(c.t, c.MoveTopicPartition(topic, partition, node))
	}
}

// beside starts a second broker, which leads nothing and is the configuration's second.
func (c *cluster) beside(cfg *publisher.Config) (node int32) {
	c.t.Helper()
	node, _, err := c.AddNode(-1, 9093)
	require.NoError(c.t, err)
	c.lead("shop.order", 0)
	for _, address := range c.ListenAddrs() {
		if !slices.Contains(cfg.Brokers, address) {
			cfg.Brokers = append(cfg.Brokers, address)
		}
	}
	return node
}

// keyOf returns a key of a partition among three.
func keyOf(partition int32) string {
	for i := 0; ; i++ {
		if key := fmt.Sprint(i); publisher.Partition([]byte(key), 3) == partition {
			return key
		}
	}
}

// A broker takes requests and answers none, while others lead its partitions by now:
// the first request finds out by its timeout, and no other one has to, neither of what
// came for the broker meanwhile nor of what comes later.
func TestABrokerThatHangsIsFoundOutOnce(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		other := c.beside(&cfg)
		p, acks := start(t, cfg)
		for partition := range int32(3) {
			publishNumbered(t, p, keyOf(partition), int(partition), int(partition))
		}
		require.NoError(t, p.Flush(t.Context()))
		for _, key := range []kmsg.Key{kmsg.Produce, kmsg.Metadata} { // waiting for a connection is behind a lock of sarama, where fake time stands still
			c.ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				return nil, nil, c.CurrentNode() != other
			})
		}
		c.lead("shop.order", other)
		begin := time.Now()
		publishNumbered(t, p, keyOf(0), 3, 3)
		time.Sleep(time.Second) // of fake time
		synctest.Wait()
		publishNumbered(t, p, keyOf(1), 4, 4)
		require.NoError(t, p.Flush(t.Context()))
		require.LessOrEqual(t, time.Since(begin), 45*time.Second, "its timeout, and that of a look-up")
		begin = time.Now()
		publishNumbered(t, p, keyOf(2), 5, 5)
		require.NoError(t, p.Flush(t.Context()))
		require.Zero(t, time.Since(begin))
		require.Len(t, acks.all(), 6)
		require.Len(t, c.values("shop.order"), 6)
	}, kfake.SeedTopics(3, "shop.order"))
}

// A broker that is cut off from the others names the leaders of then, for ever: after
// some answers that were of no use another broker is asked.
func TestABrokerThatIsCutOffIsNotBelievedForEver(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		other := c.beside(&cfg)
		p, acks := start(t, cfg)
		publishNumbered(t, p, "a", 0, 0)
		require.NoError(t, p.Flush(t.Context()))
		var answers atomic.Int64
		c.ControlKey(int16(kmsg.Metadata), func(request kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			if c.CurrentNode() == other {
				return nil, nil, false
			}
			answers.Add(1)
			return c.asBefore(request.(*kmsg.MetadataRequest)), nil, true
		})
		c.lead("shop.order", other)
		begin := time.Now()
		publishNumbered(t, p, "a", 1, 9)
		require.NoError(t, p.Flush(t.Context()))
		require.LessOrEqual(t, time.Since(begin), 5*time.Second)
		require.Positive(t, answers.Load())
		require.Len(t, acks.all(), 10)
		require.EqualValues(t, 10, c.PartitionInfo("shop.order", 0).HighWatermark)
	}, kfake.SeedTopics(1, "shop.order"))
}

// As long as nothing is refused, topics are looked up over the connection that is there: another address may be silent,
// or no longer let the relay in.
func TestARefreshKeepsItsConnection(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		c.beside(&cfg)
		cfg.TopicRefresh = time.Minute
		p, _ := start(t, cfg)
		publishNumbered(t, p, "a", 0, 0)
		require.NoError(t, p.Flush(t.Context()))
		asked := make(map[int32]int)
		c.ControlKey(int16(kmsg.Metadata), func(kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			asked[c.CurrentNode()]++
			return nil, nil, false
		})
		time.Sleep(4*cfg.TopicRefresh + time.Second) // of fake time
		synctest.Wait()
		require.Equal(t, map[int32]int{0: 4}, asked)
	}, kfake.SeedTopics(1, "shop.order"))
}

// One that is cut off has not heard of a topic that was made since. With the next refresh another is asked.
func TestARouteIsLookedUpElsewhere(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		other := c.beside(&cfg)
		cfg.TopicRefresh = time.Minute
		var answers atomic.Int64
		c.ControlKey(int16(kmsg.Metadata), func(request kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			if c.CurrentNode() == other || len(request.(*kmsg.MetadataRequest).Topics) == 0 {
				return nil, nil, false
			}
			answers.Add(1)
			response := c.asBefore(request.(*kmsg.MetadataRequest)).(*kmsg.MetadataResponse)
			for i := range response.Topics {
				response.Topics[i].ErrorCode = kerr.UnknownTopicOrPartition.Code
			}
			return response, nil, true
		})
		p, _ := start(t, cfg)
		require.ErrorContains(t, p.Publish(t.Context(), event(1, "a", "1")), "does not exist")
		for began := time.Now(); p.Publish(t.Context(), event(1, "a", "1")) != nil; {
			require.Less(t, time.Since(began), cfg.TopicRefresh+5*time.Second)
			time.Sleep(time.Second) // of fake time
		}
		require.NoError(t, p.Flush(t.Context()))
		require.Positive(t, answers.Load())
		require.EqualValues(t, 1, c.PartitionInfo("shop.order", 0).HighWatermark)
	}, kfake.SeedTopics(1, "shop.order"))
}

// A broker that wants no more for a while is left alone, and does not keep Close. The process can say until when, and
// why, as long as the connections last on which that was said.
func TestCloseIsBoundedWhileABrokerThrottles(t *testing.T) {
	const throttle = 90 * time.Second
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		cfg.Memory, cfg.ClientID = new(publisher.Memory), "onceward-orders"
		p, acks := start(t, cfg)
		var requests atomic.Int64
		c.ControlKey(int16(kmsg.Produce), func(request kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			requests.Add(1)
			response := request.ResponseKind().(*kmsg.ProduceResponse)
			response.ThrottleMillis = int32(throttle.Milliseconds())
			for _, asked := range request.(*kmsg.ProduceRequest).Topics {
				topic := kmsg.NewProduceResponseTopic()
				topic.Topic, topic.Partitions = asked.Topic, append(topic.Partitions, kmsg.NewProduceResponseTopicPartition())
				response.Topics = append(response.Topics, topic)
			}
			return response, nil, true
		})
		publishNumbered(t, p, "a", 0, 0)
		require.NoError(t, p.Flush(t.Context()))
		begin := time.Now()
		for _, topic := range []string{"shop.order", "shop.other", ""} {
			said, until := cfg.Memory.Trouble(topic, &cfg)
			require.Equal(t, begin.Add(throttle), until)
			require.Contains(t, said, "a quota is used up (producer_byte_rate or request_percentage of client id onceward-orders or of its user)")
			require.Contains(t, said, "wait until "+until.UTC().Format(time.RFC3339)+". `kafka-configs.sh --bootstrap-server "+cfg.Brokers[0]+" --describe")
		}
		publishNumbered(t, p, "a", 1, 1)
		require.NoError(t, p.Flush(t.Context()))
		require.Equal(t, throttle, time.Since(begin))
		publishNumbered(t, p, "a", 2, 2)
		begin = time.Now()
		require.NoError(t, p.Close())
		require.Equal(t, 2*time.Second, time.Since(begin), "the grace, and not a moment more")
		require.Len(t, acks.all(), 2)
		require.EqualValues(t, 2, requests.Load())
		start(t, cfg)
		said, until := cfg.Memory.Trouble("shop.order", &cfg)
		require.Zero(t, until, "nobody has asked the next publisher")
		require.Empty(t, said)
	}, kfake.SeedTopics(1, "shop.order"))
}

// The same of coordinators: one that is named by a broker that is cut off, or not at
// all, is asked of another.
func TestCoordinatorsAreAskedForElsewhere(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(2))
	c.checkpointTopic()
	cfg := c.config()
	tx := oneSlot()
	var nobody atomic.Int64
	c.ControlKey(int16(kmsg.FindCoordinator), func(request kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if cfg.Brokers[0] != c.ListenAddrs()[c.CurrentNode()] {
			return nil, nil, false
		}
		response := request.ResponseKind().(*kmsg.FindCoordinatorResponse)
		if nobody.Add(1)%2 == 0 {
			response.ErrorCode = kerr.CoordinatorNotAvailable.Code
		}
		return response, nil, true
	})
	p := startTransactional(t, cfg, tx)
	require.NoError(t, p.Commit(within(t), at(1)))
	require.GreaterOrEqual(t, nobody.Load(), int64(3))
}

// One that is cut off, and names a broker that is it no more, is not asked for ever how the
// last transaction has ended, which is the first question of a session.
func TestACoordinatorOfBeforeIsNotBelievedForEver(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(2))
	c.checkpointTopic()
	cfg, tx := c.config(), oneSlot()
	cut := 1 - c.CoordinatorFor(tx.ID)
	cfg.Brokers = []string{c.ListenAddrs()[cut], c.ListenAddrs()[1-cut]}
	host, port := c.endpoint(cut)
	c.ControlKey(int16(kmsg.FindCoordinator), func(request kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if c.CurrentNode() != cut || request.(*kmsg.FindCoordinatorRequest).CoordinatorType != 1 {
			return nil, nil, false
		}
		response := request.ResponseKind().(*kmsg.FindCoordinatorResponse)
		response.NodeID, response.Host, response.Port = cut, host, port
		return response, nil, true
	})
	p := startTransactional(t, cfg, tx)
	require.NoError(t, p.Commit(within(t), at(1)))
}

// Those that the cluster has told of are asked for a coordinator where all seeds are gone.
func TestCoordinatorsAreAskedForOfWhomTheClusterTold(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(2), kfake.SeedTopics(1, "shop.order"))
	c.checkpointTopic()
	cfg, tx := c.config(), oneSlot()
	seed := 1 - c.CoordinatorFor(tx.ID)
	cfg.Brokers = []string{c.ListenAddrs()[seed]}
	var gone atomic.Bool
	c.ControlKey(int16(kmsg.FindCoordinator), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		return nil, errors.New("gone"), gone.Load() && c.CurrentNode() == seed
	})
	p := startTransactional(t, cfg, tx)
	require.NoError(t, p.Commit(within(t), at(1)))
	gone.Store(true)
	c.ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
		return nil, errors.New("cut"), true // its coordinator is looked up anew
	})
	require.NoError(t, p.Publish(within(t), event(1, "a", "1")))
	require.NoError(t, p.Commit(within(t), at(2)))
}
