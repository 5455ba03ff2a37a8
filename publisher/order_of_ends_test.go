package publisher_test

import (
	"errors"
	"net"
	"strconv"
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

// When Flush returns, everything that it waited for has been reported: a caller
// that writes down what has ended would write too little otherwise.
func TestFlushReturnsBehindTheReport(t *testing.T) {
	inFakeTime(t, func(t *testing.T, _ *cluster, cfg publisher.Config) {
		var reported atomic.Int32
		p, err := publisher.New(t.Context(), cfg, func(tags []uint64) {
			time.Sleep(time.Second) // a slow caller, in fake time
			reported.Add(int32(len(tags)))
		})
		require.NoError(t, err)
		publishNumbered(t, p, "a", 1, 10)
		require.NoError(t, p.Flush(t.Context()))
		require.EqualValues(t, 10, reported.Load())
		require.NoError(t, p.Close())
	}, kfake.SeedTopics(1, "shop.order"))
}

// mute reads requests of one kind and never answers them.
func (c *cluster) mute(key kmsg.Key) {
	c.ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		return nil, nil, true
	})
}

// A topic that is made anew with fewer partitions, while events wait for one that
// is no more, fails the publisher: they would wait for hours.
func TestATopicThatShrankFailsWhatWaits(t *testing.T) {
	for _, change := range []string{publisher.PartitionsGoOn, publisher.PartitionsHalt} {
		t.Run(change, func(t *testing.T) {
			inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
				cfg.Memory, cfg.PartitionChange = new(publisher.Memory), change
				p, _ := start(t, cfg)
				publishNumbered(t, p, "a", 0, 0)
				require.NoError(t, p.Flush(t.Context()))
				c.mute(kmsg.Produce)
				publishNumbered(t, p, "a", 1, 1)
				require.NoError(t, c.DeleteTopic("shop.order"))
				require.NoError(t, c.CreateTopic("shop.order", 2, nil))
				<-p.Failed()
				require.ErrorIs(t, p.Err(), publisher.ErrFailed)
				var changed *publisher.PartitionError
				require.Equal(t, change == publisher.PartitionsHalt, errors.As(p.Err(), &changed), "%v", p.Err())
				require.NoError(t, p.Close())
				if change == publisher.PartitionsHalt {
					require.Equal(t, publisher.PartitionError{Topic: "shop.order", From: 8, To: 2}, *changed)
					p, _ = start(t, cfg)
					require.ErrorAs(t, p.Publish(t.Context(), event(1, "a", "1")), &changed, "and the next one halts")
					return
				}
				require.ErrorContains(t, p.Err(), "was made anew with 2 instead of 8 partitions")
			}, kfake.SeedTopics(8, "shop.order"))
		})
	}
}

// A broker that lags behind shows fewer partitions of the same topic than were seen
// before. Kafka takes none away, so nothing has changed.
func TestATopicOfOneIDLosesNoPartition(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		cfg.PartitionChange = publisher.PartitionsHalt
		p, acks := start(t, cfg)
		publishNumbered(t, p, "key-2", 0, 0)
		require.NoError(t, p.Flush(t.Context()))
		id := c.TopicInfo("shop.order").TopicID
		var asked atomic.Int64
		c.ControlKey(int16(kmsg.Metadata), func(request kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			asked.Add(1)
			response := c.asBefore(request.(*kmsg.MetadataRequest)).(*kmsg.MetadataResponse)
			for i := range response.Topics {
				response.Topics[i].TopicID = id
			}
			return response, nil, true
		})
		time.Sleep(2 * publisher.DefaultTopicRefresh)
		synctest.Wait()
		require.Positive(t, asked.Load())
		publishNumbered(t, p, "key-2", 1, 9)
		require.NoError(t, p.Flush(t.Context()))
		require.Len(t, acks.all(), 10)
		require.EqualValues(t, 10, c.PartitionInfo("shop.order", publisher.Partition([]byte("key-2"), 8)).HighWatermark)
	}, kfake.SeedTopics(8, "shop.order"))
}

// endpoint is where a node listens.
func (c *cluster) endpoint(node int32) (host string, port int32) {
	c.t.Helper()
	host, text, err := net.SplitHostPort(c.ListenAddrs()[node])
	require.NoError(c.t, err)
	number, err := strconv.Atoi(text)
	require.NoError(c.t, err)
	return host, int32(number)
}

// asBefore answers that topics have one partition.
func (c *cluster) asBefore(request *kmsg.MetadataRequest) kmsg.Response {
	response := kmsg.NewPtrMetadataResponse()
	response.SetVersion(request.GetVersion())
	broker := kmsg.NewMetadataResponseBroker()
	broker.Host, broker.Port = c.endpoint(0)
	response.Brokers = append(response.Brokers, broker)
	for _, asked := range request.Topics {
		topic, partition := kmsg.NewMetadataResponseTopic(), kmsg.NewMetadataResponseTopicPartition()
		partition.Replicas, partition.ISR = []int32{0}, []int32{0}
		topic.Topic, topic.Partitions = asked.Topic, append(topic.Partitions, partition)
		response.Topics = append(response.Topics, topic)
	}
	return response
}

// A broker that is asked for leaders may know of new partitions later than the one
// that is asked about topics. What is placed in one waits for its leader, in order,
// and holds no other up.
func TestPartitionsWithoutAKnownLeaderAreWaitedFor(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		p, acks := start(t, cfg)
		publishNumbered(t, p, "key-2", 0, 0)
		require.NoError(t, p.Flush(t.Context()))
		var deaf atomic.Bool
		c.ControlKey(int16(kmsg.Metadata), func(request kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			// Look-ups of topics ask what may be done to them, those of leaders do not.
			if deaf.Load() && !request.(*kmsg.MetadataRequest).IncludeTopicAuthorizedOperations {
				return c.asBefore(request.(*kmsg.MetadataRequest)), nil, true
			}
			return nil, nil, false
		})
		c.addPartitions("shop.order", 8)
		deaf.Store(true)
		time.Sleep(2 * publisher.DefaultTopicRefresh)
		synctest.Wait()
		publishNumbered(t, p, "key-2", 1, 3)
		old := "" // a key of the partition whose leader is known
		for i := 0; publisher.Partition([]byte(old), 8) != 0; i++ {
			old = numbers(i, i)[0]
		}
		publishNumbered(t, p, old, 4, 4)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []uint64{0, 4}, acks.all())
		require.NoError(t, p.Err())
		deaf.Store(false)
		require.NoError(t, p.Flush(t.Context()))
		require.Equal(t, []uint64{0, 4, 1, 2, 3}, acks.all())
		require.Len(t, c.read("shop.order")[publisher.Partition([]byte("key-2"), 8)], 3)
	}, kfake.SeedTopics(1, "shop.order"))
}

// Without RequireStable the coordinator would show the position before the
// transaction that is about to be committed.
func TestTheCheckpointIsAskedForAsStable(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
	c.checkpointTopic()
	var asked atomic.Int32
	c.ControlKey(int16(kmsg.OffsetFetch), func(request kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if request.(*kmsg.OffsetFetchRequest).RequireStable {
			asked.Add(1)
		}
		return nil, nil, false
	})
	p, err := publisher.NewTransactional(within(t), c.config(), oneSlot())
	require.NoError(t, err)
	require.NoError(t, p.Close())
	require.EqualValues(t, 1, asked.Load())
}

// A producer that must be replaced, and cannot be, fails within the timeout.
func TestAReplacementThatDoesNotComeFails(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		c.checkpointTopic()
		tx := oneSlot()
		tx.Timeout = 40 * time.Second
		p := startTransactional(t, cfg, tx)
		transact(t, p, "a", 0, 0)
		atRest()
		c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, Err: kerr.ConcurrentTransactions})
		c.mute(kmsg.InitProducerID)
		begin := time.Now()
		committed := make(chan error, 1)
		go func() { committed <- p.Commit(t.Context(), at(1)) }()
		<-p.Failed()
		require.WithinRange(t, time.Now(), begin.Add(40*time.Second), begin.Add(55*time.Second))
		require.ErrorContains(t, p.Err(), "was not ended, or what it left not read, within its timeout of 40s")
		require.NoError(t, <-committed, "the commit itself is known")
	}, kfake.SeedTopics(1, "shop.order"))
}
