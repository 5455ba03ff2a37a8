package publisher_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/publisher/internal/limit"
	"github.com/onceward/onceward/record"
)

func TestPublishedRecordsAreExact(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(3, "shop.order"))
	p, acks := start(t, c.config())

	full := row("order-1", `{"total":5}`)
	full.Traceparent = []byte("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	full.Headers = []byte(`{"tenant": "acme", "a": "ü", "zz": "", "note": "line\nbreak"}`)
	tombstone, empty := row("order-1", ""), row("order-1", "")
	tombstone.Payload = nil
	empty.Payload = []byte{}
	before := time.Now().Add(-time.Millisecond)
	require.NoError(t, p.Publish(within(t), publisher.Event{Row: full, Tag: 7, Position: "0/16B3748"}))
	require.NoError(t, p.Publish(within(t), publisher.Event{Row: tombstone, Tag: 8}))
	require.NoError(t, p.Publish(within(t), publisher.Event{Row: empty, Tag: 9}))
	require.NoError(t, p.Flush(within(t)))
	require.Equal(t, []uint64{7, 8, 9}, acks.all())

	records := c.read("shop.order")[publisher.Partition([]byte("order-1"), 3)]
	require.Len(t, records, 3)
	require.Equal(t, []kgo.RecordHeader{
		{Key: "idempotency-key", Value: []byte("shop:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a")},
		{Key: "event-type", Value: []byte("OrderPaid")},
		{Key: "aggregate-type", Value: []byte("order")},
		{Key: "content-type", Value: []byte("application/json")},
		{Key: "occurred-at", Value: []byte("2026-10-01T12:30:00.123456Z")},
		{Key: "traceparent", Value: []byte("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")},
		{Key: "position", Value: []byte("0/16B3748")},
		{Key: "a", Value: []byte("ü")},
		{Key: "note", Value: []byte("line\nbreak")},
		{Key: "tenant", Value: []byte("acme")},
		{Key: "zz", Value: []byte{}},
	}, records[0].Headers)
	require.Equal(t, "order-1", string(records[0].Key))
	require.Equal(t, `{"total":5}`, string(records[0].Value))
	require.WithinRange(t, records[0].Timestamp, before, time.Now(), "stamped when published, not when it occurred")
	require.Nil(t, records[1].Value, "a NULL payload is a tombstone")
	require.Len(t, records[1].Headers, 5)
	require.NotNil(t, records[2].Value, "an empty payload is not")
	require.Empty(t, records[2].Value)
}

func TestOrderPerKeyUnderLoad(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(3), kfake.SeedTopics(5, "shop.order"))
	p, acks := start(t, c.config())
	const keys, each = 50, 200
	ctx := within(t)
	var tag uint64
	for n := range each {
		for k := range keys {
			require.NoError(t, p.Publish(ctx, event(tag, fmt.Sprintf("k%d", k), fmt.Sprint(n))))
			tag++
		}
	}
	require.NoError(t, p.Flush(ctx))
	events, bytes := p.InFlight()
	require.Zero(t, events)
	require.Zero(t, bytes)

	seen := make(map[uint64]bool)
	for _, tag := range acks.all() {
		require.False(t, seen[tag], "tag %d acknowledged twice", tag)
		seen[tag] = true
	}
	require.Len(t, seen, keys*each)
	next := make(map[string]int)
	for partition, records := range c.read("shop.order") {
		for _, r := range records {
			key := string(r.Key)
			require.Equal(t, publisher.Partition(r.Key, 5), partition)
			require.Equal(t, fmt.Sprint(next[key]), string(r.Value), "order of %s", key)
			next[key]++
		}
	}
	require.Len(t, next, keys)
}

func TestUnroutableEvents(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order", "shop.secret"))
	cfg := c.config()
	cfg.Routes = []publisher.Route{{Match: publisher.Match{Namespace: "sh?p"}, Topic: "{namespace}.{aggregate_type}"}}
	cfg.Topics.Allow = []string{"shop.o*"}
	p, acks := start(t, cfg)

	foreign, secret, broken := row("a", ""), row("a", ""), row("a", "")
	foreign.Namespace = "other"
	secret.AggregateType = "secret"
	broken.AggregateType = "or der"
	err := p.Publish(within(t), publisher.Event{Row: foreign})
	require.ErrorIs(t, err, publisher.ErrRoute)
	require.ErrorContains(t, err, "add an entry to routes in the relay's configuration; then start the relay again")
	var route *publisher.RouteError
	require.ErrorAs(t, err, &route)
	require.Equal(t, "other/order", route.Route, "what to hold when there is no topic")
	err = p.Publish(within(t), publisher.Event{Row: secret})
	require.ErrorIs(t, err, publisher.ErrRoute)
	require.ErrorContains(t, err, "topics.allow, or correct the route; then start the relay again")
	require.ErrorAs(t, err, &route)
	require.Equal(t, "shop.secret", route.Route)
	err = p.Publish(within(t), publisher.Event{Row: broken})
	require.ErrorIs(t, err, publisher.ErrRecord)
	require.ErrorContains(t, err, "byte 7")

	require.NoError(t, p.Publish(within(t), event(1, "a", "fine")))
	require.NoError(t, p.Flush(within(t)))
	require.Equal(t, []uint64{1}, acks.all())
}

// An event that names its topic goes there whatever the routes say, within the
// allow-list; its neighbours keep their route.
func TestEventNamesItsTopic(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order", "replays.a", "elsewhere"))
	cfg := c.config()
	cfg.Topics.Allow = []string{"shop.*", "replays.*"}
	p, acks := start(t, cfg)
	to := func(topic string) error {
		ev := event(1, "a", "copy")
		ev.Topic = topic
		return p.Publish(within(t), ev)
	}
	publishNumbered(t, p, "a", 0, 0)
	require.NoError(t, to("replays.a"))
	publishNumbered(t, p, "a", 2, 2)
	require.NoError(t, to("shop.order"))
	require.ErrorIs(t, to("elsewhere"), publisher.ErrRoute)
	require.ErrorIs(t, to("no topic"), publisher.ErrRecord)
	require.ErrorIs(t, to("__consumer_offsets"), publisher.ErrRecord)
	require.NoError(t, p.Flush(within(t)))
	require.Len(t, acks.all(), 4)
	require.Equal(t, []string{"copy"}, c.values("replays.a"))
	require.Equal(t, []string{"0", "2", "copy"}, c.values("shop.order"))
}

func TestOversizeLeavesItsNeighboursAlone(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
	p, acks := start(t, c.config())
	require.NoError(t, p.Publish(within(t), event(1, "a", "small-1")))
	err := p.Publish(within(t), event(2, "a", string(make([]byte, publisher.DefaultMaxMessageBytes))))
	require.NoError(t, p.Publish(within(t), event(3, "a", "small-2")))

	var refused *record.RowError
	require.ErrorAs(t, err, &refused)
	require.ErrorIs(t, err, publisher.ErrRecord)
	require.Greater(t, refused.Size, refused.Limit)
	require.Equal(t, publisher.BatchLimit(publisher.DefaultMaxMessageBytes)-limit.Headroom, refused.Limit)
	require.Equal(t, 998_462, refused.Limit, "relay.Config and docs/operations.md have this number")
	require.Contains(t, refused.Detail, "kafka.max_message_bytes = 1000000: raise that in relay.yaml to at least ")
	require.Contains(t, refused.Detail, "and max.message.bytes of the topic")
	require.NoError(t, p.Flush(within(t)))
	require.Equal(t, []uint64{1, 3}, acks.all())
	require.Equal(t, []string{"small-1", "small-2"}, c.values("shop.order"))
}

// The limit that a refusal asks for takes the record, and one byte less may not.
func TestTheLimitThatIsNamedTakesTheRecord(t *testing.T) {
	for _, payload := range []int{1_000_000, 2_000_000, 10_485_760} {
		ev := event(0, "a", string(make([]byte, payload)))
		var over *record.RowError
		require.ErrorAs(t, publisher.CheckSize(ev, publisher.DefaultMaxMessageBytes), &over)
		_, least, _ := strings.Cut(over.Detail, "to at least ")
		limit, err := strconv.Atoi(strings.Fields(least)[0])
		require.NoError(t, err, over.Detail)
		require.NoError(t, publisher.CheckSize(ev, limit))
		require.Error(t, publisher.CheckSize(ev, limit-3))
	}
}

// Batches that cannot be compressed at all, filled to the limit, against topics
// that take exactly max_message_bytes.
func TestFullBatchesPassWithEveryCompression(t *testing.T) {
	for _, compression := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		t.Run(compression, func(t *testing.T) {
			c := newCluster(t)
			const limit = 8_000_000
			require.NoError(t, c.CreateTopic("shop.order", 1, map[string]string{"max.message.bytes": fmt.Sprint(limit)}))
			cfg := c.config()
			cfg.MaxMessageBytes, cfg.Compression = limit, compression
			p, acks := start(t, cfg)
			var over *record.RowError
			require.ErrorAs(t, publisher.CheckSize(event(0, "a", string(make([]byte, limit))), limit), &over)
			largest := limit - (over.Size - over.Limit)
			require.NoError(t, publisher.CheckSize(event(0, "a", string(make([]byte, largest))), limit))
			for i, size := range []int{largest, largest / 2, largest/2 - 200, 300, largest / 3, largest / 3, largest/3 - 400} {
				require.NoError(t, p.Publish(within(t), event(uint64(i), "a", noise(size))))
			}
			require.NoError(t, p.Flush(within(t)))
			require.Len(t, acks.all(), 7)
		})
	}
}

// noise returns bytes that no codec makes smaller.
func noise(n int) string {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b) // it cannot fail
	return string(b)
}

func TestPublishBlocksWhenTooMuchIsInFlight(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
	release := c.holdProduce()
	cfg := c.config()
	cfg.MaxInFlightBytes = 64 << 10
	p, acks := start(t, cfg)

	sent := uint64(0)
	ctx, cancel := context.WithTimeout(within(t), 500*time.Millisecond)
	defer cancel()
	var err error
	for ; err == nil; sent++ {
		err = p.Publish(ctx, event(sent, "a", string(make([]byte, 1000))))
	}
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, inFlight := p.InFlight()
	require.LessOrEqual(t, inFlight, cfg.MaxInFlightBytes)
	require.Empty(t, acks.all())

	release()
	require.NoError(t, p.Publish(within(t), event(sent, "a", string(make([]byte, 200_000)))), "one event beyond the bound passes alone")
	require.NoError(t, p.Flush(within(t)))
	require.Len(t, acks.all(), int(sent), "all but the one that ctx ended")
}

func TestFlush(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
	p, acks := start(t, c.config())
	require.NoError(t, p.Flush(within(t)), "nothing to wait for")
	release := c.holdProduce()
	publishNumbered(t, p, "a", 1, 10)
	ctx, cancel := context.WithTimeout(within(t), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, p.Flush(ctx), context.DeadlineExceeded)
	require.Empty(t, acks.all())
	release()
	require.NoError(t, p.Flush(within(t)))
	require.Len(t, acks.all(), 10)
}

func TestLoneEventLeavesAtOnce(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
	p, _ := start(t, c.config())
	publishNumbered(t, p, "a", 0, 0)
	require.NoError(t, p.Flush(within(t)))
	var worst time.Duration
	for i := range 20 {
		begin := time.Now()
		publishNumbered(t, p, "a", i, i)
		require.NoError(t, p.Flush(within(t)))
		worst = max(worst, time.Since(begin))
	}
	require.Less(t, worst, time.Second, "no linger: only the round trip")
}
