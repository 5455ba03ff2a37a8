package publisher_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/publisher/internal/limit"
	"github.com/onceward/onceward/record"
)

// batches notes how many records each batch of the topic has.
func (c *cluster) batches(topic string) func() []int {
	var mu sync.Mutex
	var sizes []int
	c.ControlKey(int16(kmsg.Produce), func(request kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		for _, written := range request.(*kmsg.ProduceRequest).Topics {
			for _, partition := range written.Partitions {
				var batch kmsg.RecordBatch
				if written.Topic == topic && batch.ReadFrom(partition.Records) == nil {
					sizes = append(sizes, int(batch.NumRecords))
				}
			}
		}
		return nil, nil, false
	})
	return func() []int {
		mu.Lock()
		defer mu.Unlock()
		return append([]int(nil), sizes...)
	}
}

// A topic that takes less than a batch of ours gets its records one by one; the
// others keep their batches.
func TestNarrowTopicGetsRecordsOneByOne(t *testing.T) {
	const small = 60_000
	for name, readable := range map[string]bool{"by its limit": true, "by name": false} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, kfake.SeedTopics(1, "shop.wide"))
			require.NoError(t, c.CreateTopic("shop.order", 3, map[string]string{"max.message.bytes": fmt.Sprint(small)}))
			logged := &logLines{}
			cfg := c.config()
			cfg.Logger = logged.logger()
			if !readable {
				c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeConfigs}, Err: kerr.TopicAuthorizationFailed, Count: -1})
				cfg.Narrow = []string{"shop.order"}
			}
			narrow, wide := c.batches("shop.order"), c.batches("shop.wide")
			p, acks := start(t, cfg)
			const n = 300
			for i := range n {
				ev := event(uint64(i), fmt.Sprintf("k%d", i%7), noise(1000))
				require.NoError(t, p.Publish(within(t), ev))
				ev = event(uint64(n+i), "a", "x")
				ev.Row.AggregateType = "wide"
				require.NoError(t, p.Publish(within(t), ev))
			}
			require.NoError(t, p.Flush(within(t)))
			require.Len(t, acks.all(), 2*n)
			require.Len(t, c.values("shop.order"), n)
			require.Len(t, narrow(), n, "every record had a batch of its own")
			require.Less(t, len(wide()), n, "the other topic kept its batches")
			require.Equal(t, 1, strings.Count(logged.String(), "its records go one by one"))
			require.Contains(t, logged.String(), "kafka-configs.sh")
		})
	}
}

// A record that fits the relay's limit and not the topic's is a poison record, as
// one beyond the relay's is; those that fit go on. A limit that was raised is
// seen before another record is refused for it.
func TestRecordBeyondTheTopicsLimitIsPoison(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		c.setLimit("shop.order", 50_000)
		p, acks := start(t, cfg)
		large := event(1, "a", strings.Repeat("x", 60_000))
		publishNumbered(t, p, "a", 0, 0)
		err := p.Publish(t.Context(), large)
		var refused *record.RowError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, "size", refused.Field)
		require.Less(t, refused.Limit, 50_000)
		require.Contains(t, refused.Detail, "at most 50000 bytes")
		require.Contains(t, refused.Detail, fmt.Sprintf("at most %d fit into one", refused.Limit))
		require.Contains(t, refused.Detail, "--add-config max.message.bytes=1000000")
		require.NotContains(t, refused.Detail, "lower", "a lower limit of the relay takes it no more")
		publishNumbered(t, p, "a", 2, 2)
		require.ErrorIs(t, p.Publish(t.Context(), event(3, "a", strings.Repeat("x", 1_000_000))), publisher.ErrRecord)

		c.setLimit("shop.order", 1_048_588)
		time.Sleep(time.Second)
		require.NoError(t, p.Publish(t.Context(), large))
		require.NoError(t, p.Flush(t.Context()))
		require.Equal(t, []uint64{0, 2, 1}, acks.all())

		c.setLimit("shop.order", 50_000)
		time.Sleep(publisher.DefaultTopicRefresh)
		synctest.Wait()
		time.Sleep(time.Second)
		c.Close()
		require.ErrorIs(t, p.Publish(t.Context(), large), publisher.ErrRoute, "nobody says whether the limit still holds")
		require.NoError(t, p.Err())
	}, kfake.SeedTopics(1, "shop.order"))
}

// copies are the repair of an event and its replays, with headers as long as they get.
func copies(ev publisher.Event) []publisher.Event {
	repair, redelivered, reprocessed := ev, ev, ev
	repair.RepairID, repair.Position = uuid.New(), "FFFFFFFF/FFFFFFFF"
	redelivered.Replay = &record.Replay{ID: uuid.New(), Mode: record.ReplayRedeliver}
	reprocessed.Replay = &record.Replay{ID: uuid.New(), Mode: record.ReplayReprocess, Group: strings.Repeat("g", 255)}
	reprocessed.RepairID, reprocessed.Position = repair.RepairID, repair.Position
	return []publisher.Event{repair, redelivered, reprocessed}
}

// The largest event that is published can be repaired and replayed: by the relay's limit
// and by a topic's, which takes a byte more of a copy and not of the event.
func TestWhatWasPublishedCanBeRepairedAndReplayed(t *testing.T) {
	const bound = 50_000
	for name, topics := range map[string]int{"the relay's limit": 1_048_588, "the topic's": bound} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
			c.setLimit("shop.order", topics)
			cfg := c.config()
			cfg.Compression = "none"
			if topics > bound {
				cfg.MaxMessageBytes = bound
			}
			p, acks := start(t, cfg)
			ev := event(0, "a", noise(bound))
			var over *record.RowError
			require.ErrorAs(t, p.Publish(within(t), ev), &over)
			require.Contains(t, over.Detail, fmt.Sprintf("with room for the headers of its repair and its replay at most %d fit into", over.Limit))
			largest := bound - (over.Size - over.Limit)
			ev.Row.Payload = ev.Row.Payload[:largest]
			require.NoError(t, p.Publish(within(t), ev))
			for _, copied := range copies(ev) {
				require.NoError(t, p.Publish(within(t), copied))
			}
			require.NoError(t, p.Flush(within(t)))
			require.Len(t, acks.all(), 4)
			ev.Row.Payload = append(ev.Row.Payload, 'x')
			require.ErrorIs(t, p.Publish(within(t), ev), publisher.ErrRecord)
			ev.RepairID = uuid.New()
			require.NoError(t, p.Publish(within(t), ev), "published by a release that left no room")
			ev.Row.Payload = append(ev.Row.Payload, strings.Repeat("x", limit.Headroom)...)
			require.ErrorAs(t, p.Publish(within(t), ev), &over)
			require.NotContains(t, over.Detail, "with room for")
		})
	}
}

// What is tried again is not refused by a figure of before: who tries has raised the limit
// just now.
func TestWhatIsTriedAgainHasTheLimitOfNow(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		c.setLimit("shop.order", 50_000)
		p, acks := start(t, cfg)
		large := event(1, "a", strings.Repeat("x", 60_000))
		require.ErrorIs(t, p.Publish(t.Context(), large), publisher.ErrRecord)
		c.setLimit("shop.order", 1_048_588)
		require.ErrorIs(t, p.Publish(t.Context(), large), publisher.ErrRecord, "the figure is of this second")
		large.Again = true
		require.NoError(t, p.Publish(t.Context(), large))
		require.NoError(t, p.Flush(t.Context()))
		require.Equal(t, []uint64{1}, acks.all())
	}, kfake.SeedTopics(1, "shop.order"))
}

// A limit lowered and raised while the publisher runs: seen at the next look,
// and nothing is refused between.
func TestLimitsAreWatched(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		logged := &logLines{}
		cfg.Logger = logged.logger()
		sizes := c.batches("shop.order")
		p, acks := start(t, cfg)
		publishNumbered(t, p, "a", 0, 0)
		require.NoError(t, p.Flush(t.Context()))
		look := func() {
			time.Sleep(publisher.DefaultTopicRefresh)
			synctest.Wait()
		}
		c.setLimit("shop.order", 2_000)
		look()
		publishNumbered(t, p, "a", 1, 50)
		require.NoError(t, p.Flush(t.Context()))
		require.Len(t, sizes(), 51)
		c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeConfigs}, Err: kerr.TopicAuthorizationFailed})
		look()
		publishNumbered(t, p, "a", 51, 100)
		require.NoError(t, p.Flush(t.Context()))
		require.Len(t, sizes(), 101, "a limit that cannot be read this time is still the limit")
		c.setLimit("shop.order", 1_048_588)
		look()
		publishNumbered(t, p, "a", 101, 150)
		require.NoError(t, p.Flush(t.Context()))
		require.Less(t, len(sizes()), 151)
		require.Len(t, acks.all(), 151)
		require.Contains(t, logged.String(), "takes whole batches again")
		require.Equal(t, numbers(0, 150), c.values("shop.order"))
	}, kfake.SeedTopics(1, "shop.order"))
}

// What a session learns by a refusal, the next one does: a batch refused as too
// large, then its records one by one, and the one that is to blame by its id.
func TestRefusalsLeadToTheRecordToBlame(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeConfigs}, Err: kerr.TopicAuthorizationFailed, Count: -1})
	c.setLimit("shop.order", 50_000)
	cfg := c.config()
	session := func() (acknowledged int, err error) {
		p, acks := start(t, cfg)
		err = p.Publish(within(t), event(0, "a", "first"))
		for i := 1; i < 100 && err == nil; i++ {
			payload := "small"
			if i == 30 {
				payload = noise(60_000)
			}
			ev := event(uint64(i), "a", payload)
			ev.Row.ID[15] = byte(i)
			err = p.Publish(within(t), ev)
		}
		if err == nil {
			err = p.Flush(within(t))
		}
		require.NoError(t, p.Close())
		require.ErrorIs(t, err, publisher.ErrFailed)
		return len(acks.all()), err
	}
	_, err := session()
	var narrow *publisher.NarrowError
	require.ErrorAs(t, err, &narrow)
	require.Equal(t, "shop.order", narrow.Topic)

	cfg.Narrow = append(cfg.Narrow, narrow.Topic)
	acknowledged, err := session()
	var refused *publisher.RefusedError
	require.ErrorAs(t, err, &refused)
	require.EqualValues(t, 30, refused.ID[15])
	require.Equal(t, 30, acknowledged, "all before it went through")
}

// A topic that refused a batch although its limit looks fine is not trusted
// again before that limit is seen to be raised.
func TestNamedTopicStaysNarrowUntilRaised(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		cfg.Narrow = []string{"shop.order"}
		sizes := c.batches("shop.order")
		p, _ := start(t, cfg)
		publishNumbered(t, p, "a", 1, 20)
		require.NoError(t, p.Flush(t.Context()))
		require.Len(t, sizes(), 20)
		c.setLimit("shop.order", 2_000_000)
		time.Sleep(publisher.DefaultTopicRefresh)
		synctest.Wait()
		publishNumbered(t, p, "a", 21, 60)
		require.NoError(t, p.Flush(t.Context()))
		require.Less(t, len(sizes()), 60)
	}, kfake.SeedTopics(1, "shop.order"))
}
