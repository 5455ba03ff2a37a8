package publisher_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/publisher"
)

// A clock that is wrong is no record's fault: the topic rests, with both clocks
// named, others go on, and it goes on by itself within a minute of the clock
// being right.
func TestATopicThatRefusesTheClockRests(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		cfg.Memory = new(publisher.Memory)
		p, _ := start(t, cfg)
		c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.InvalidTimestamp, Count: 1})
		require.NoError(t, p.Publish(t.Context(), event(0, "a", "0")))
		err := p.Flush(t.Context())
		var lost *publisher.LostRouteError
		require.ErrorAs(t, err, &lost)
		require.Equal(t, "shop.order", lost.Route)
		require.NoError(t, p.Close())

		restsForAMinute(t, cfg, func(route *publisher.RouteError) {
			require.Contains(t, route.Reason, "by this relay's clock")
			require.Contains(t, route.Reason, "the broker's clock")
			require.Contains(t, route.Reason, time.Now().UTC().Format("2006-01-02T15:04"))
			require.Contains(t, route.Advice(), "date -u")
		})
	}, kfake.SeedTopics(1, "shop.order", "shop.other"))
}

// restsForAMinute starts the next publisher, for which shop.order rests, as says, while
// others go on, and is tried again by itself.
func restsForAMinute(t *testing.T, cfg publisher.Config, says func(route *publisher.RouteError)) {
	t.Helper()
	p, acks := start(t, cfg)
	var route *publisher.RouteError
	require.ErrorAs(t, p.Publish(t.Context(), event(0, "a", "0")), &route)
	says(route)
	require.NoError(t, p.Publish(t.Context(), typed(1, "other")))
	time.Sleep(time.Minute)
	synctest.Wait()
	require.NoError(t, p.Publish(t.Context(), event(0, "a", "0")))
	require.NoError(t, p.Flush(t.Context()))
	require.Equal(t, []uint64{1, 0}, acks.all())
}

// A failure of the broker that says nothing may pass with the producer. The second one in
// a row has the topic rest, and others go on.
func TestATopicThatIsRefusedWithoutAReasonRests(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		cfg.Memory = new(publisher.Memory)
		for range 2 {
			p, _ := start(t, cfg)
			c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.UnknownServerError, Count: 1})
			require.NoError(t, p.Publish(t.Context(), event(0, "a", "0")))
			err := p.Flush(t.Context())
			require.ErrorIs(t, err, publisher.ErrFailed)
			require.ErrorContains(t, err, "its log does")
			require.NoError(t, p.Close())
		}
		restsForAMinute(t, cfg, func(route *publisher.RouteError) {
			require.Contains(t, route.Reason, "has refused records 2 times in a row")
			require.Contains(t, route.Advice(), "kafka-topics.sh --bootstrap-server "+cfg.Brokers[0]+" --describe --topic shop.order")
		})
	}, kfake.SeedTopics(1, "shop.order", "shop.other"))
}

// What is sent again for hours says meanwhile why, and what to do about it.
func TestWhatIsSentAgainSaysWhy(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		cfg.Memory = new(publisher.Memory)
		p, acks := start(t, cfg)
		trouble := func(topic string) string {
			said, throttled := cfg.Memory.Trouble(topic, &cfg)
			require.Zero(t, throttled)
			return said
		}
		require.Empty(t, trouble("shop.order"))
		c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.CorruptMessage, Count: 3})
		require.NoError(t, p.Publish(t.Context(), event(0, "a", "0")))
		time.Sleep(150 * time.Millisecond)
		synctest.Wait()
		require.Contains(t, trouble("shop.order"), "does not match its CRC: the checksum of what arrives is wrong")
		require.Empty(t, trouble("shop.other"))
		require.NoError(t, p.Flush(t.Context()))
		require.Empty(t, trouble("shop.order"), "it was taken")
		require.Equal(t, []uint64{0}, acks.all())
	}, kfake.SeedTopics(1, "shop.order", "shop.other"))
}

// What keys were placed by is known to the next publisher of the process: with
// halt it refuses as the one before did, else it says that the count changed.
func TestPartitionCountsOutliveAPublisher(t *testing.T) {
	for _, change := range []string{publisher.PartitionsHalt, publisher.PartitionsGoOn} {
		t.Run(change, func(t *testing.T) {
			c := newCluster(t, kfake.SeedTopics(3, "shop.order"))
			logged := &logLines{}
			cfg := c.config()
			cfg.Logger, cfg.Memory, cfg.PartitionChange = logged.logger(), new(publisher.Memory), change
			p, _ := start(t, cfg)
			publishNumbered(t, p, "a", 0, 0)
			require.NoError(t, p.Flush(within(t)))
			require.NoError(t, p.Close())
			c.addPartitions("shop.order", 6)
			for range 2 {
				p, _ = start(t, cfg)
				err := p.Publish(within(t), event(1, "a", "1"))
				if change == publisher.PartitionsHalt {
					var changed *publisher.PartitionError
					require.ErrorAs(t, err, &changed)
					require.Equal(t, publisher.PartitionError{Topic: "shop.order", From: 3, To: 6}, *changed)
				} else {
					require.NoError(t, err)
				}
				require.NoError(t, p.Close())
			}
			said := strings.Count(logged.String(), "partition count of a topic changed")
			require.Equal(t, change == publisher.PartitionsGoOn, said == 1)
		})
	}
}

// The checkpoint's topic is nobody's target: a literal route is refused at once,
// a row that asks for it gets a letter.
func TestTheCheckpointsTopicIsReserved(t *testing.T) {
	cfg := minimal()
	cfg.Routes = []publisher.Route{{Topic: publisher.DefaultCheckpointTopic}}
	require.ErrorContains(t, cfg.Validate(), "Routes[0].Topic")
	require.ErrorContains(t, cfg.Validate(), "keeps the checkpoint of exactly-once mode")
	cfg.Routes = []publisher.Route{{Topic: "{namespace}.{aggregate_type}"}}
	require.NoError(t, cfg.Validate())
	_, err := cfg.TopicOf("onceward", "checkpoint", "x")
	require.ErrorIs(t, err, publisher.ErrRecord)

	c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
	p, _ := start(t, c.config())
	again := event(0, "a", "0")
	again.Topic = publisher.DefaultCheckpointTopic
	require.ErrorIs(t, p.Publish(within(t), again), publisher.ErrRecord, "a replay, too")

	cfg = c.config()
	cfg.Routes = []publisher.Route{{Topic: "mine"}}
	_, err = publisher.NewTransactional(within(t), cfg, publisher.TransactionConfig{ID: "x", Group: "x", Topic: "mine"})
	require.ErrorContains(t, err, "keeps the checkpoint of exactly-once mode")
}
