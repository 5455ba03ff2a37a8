package publisher_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/record"
)

// A record is built in two allocations: itself, and the texts of its headers,
// in every style, and as a copy too. Beyond inlineHeaders it takes a third.
func TestAllocationsPerRecord(t *testing.T) {
	plain, headed, copied := event(1, "order-1", `{"total":5}`), event(1, "order-1", `{"total":5}`), event(1, "order-1", `{"total":5}`)
	headed.Row.Headers = []byte(`{"tenant": "acme"}`)
	copied.Replay = &record.Replay{ID: copied.Row.ID, Mode: "redeliver"}
	copied.RepairID = copied.Row.ID
	for name, ev := range map[string]publisher.Event{"plain": plain, "with headers": headed, "copy": copied} {
		for _, style := range []string{record.StyleOnceward, record.StyleCloudEvents, record.StyleDebezium} {
			limit := 2.0
			if name == "copy" && style != record.StyleOnceward {
				limit = 3
			}
			var err error
			var b publisher.Builder
			perRecord := testing.AllocsPerRun(1000, func() { err = b.Build(ev, style) })
			require.NoError(t, err)
			require.LessOrEqual(t, perRecord, limit, "%s, %s", name, style)
		}
	}
	headed.Row.Headers = []byte(`{"tenant": "acme", "region": "eu"}`)
	headed.Row.Traceparent = []byte("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	var b publisher.Builder
	require.LessOrEqual(t, testing.AllocsPerRun(1000, func() { _ = b.Build(headed, record.StyleOnceward) }), 2.0)
}

// The whole of Publish, routing and hand-over included, with many origins and
// with one.
func TestAllocationsPerPublish(t *testing.T) {
	cfg := minimal()
	cfg.Routes = []publisher.Route{{Topic: "{namespace}.{aggregate_type}.{event_type}"}}
	p, stop, err := publisher.NewDetached(cfg, 12)
	require.NoError(t, err)
	defer stop()
	events := []publisher.Event{event(1, "a", "x"), event(2, "b", "y"), event(3, "c", "z")}
	events[1].Row.Type, events[2].Row.AggregateType = "OrderSent", "parcel"
	n := 0
	ctx := t.Context()
	perEvent := testing.AllocsPerRun(10_000, func() {
		if err := p.Publish(ctx, events[n%len(events)]); err != nil {
			t.Fatal(err)
		}
		n++
	})
	require.LessOrEqual(t, perEvent, 1.0)
}

// The two caches whose keys come from rows.
func TestRoutesOfRowsAreForgottenInTime(t *testing.T) {
	p, stop, err := publisher.NewDetached(minimal(), 1)
	require.NoError(t, err)
	defer stop()
	ev := event(1, "a", "x")
	for i := range 2*publisher.MaxOrigins + 1 {
		ev.Row = row("a", "x")
		ev.Row.AggregateType = fmt.Sprint(i)
		require.NoError(t, p.Publish(t.Context(), ev))
		ev.Topic = fmt.Sprint("named.", i)
		require.NoError(t, p.Publish(t.Context(), ev))
		ev.Topic = ""
	}
	routes, topics := p.Cached()
	require.LessOrEqual(t, routes, publisher.MaxOrigins)
	require.LessOrEqual(t, topics, publisher.MaxOrigins)
}

func BenchmarkBuildRecord(b *testing.B) {
	ev := event(1, "order-1", string(make([]byte, 350)))
	b.ReportAllocs()
	var builder publisher.Builder
	for b.Loop() {
		if err := builder.Build(ev, record.StyleOnceward); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPartition(b *testing.B) {
	key := []byte("0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a")
	for b.Loop() {
		publisher.Partition(key, 12)
	}
}

// BenchmarkPublish measures the whole way to a broker that throws records away,
// broker included: events/s is the figure, and allocations count both sides.
func BenchmarkPublish(b *testing.B) {
	for _, partitions := range []int32{1, 12} {
		b.Run(fmt.Sprintf("partitions=%d", partitions), func(b *testing.B) {
			c := newCluster(b, kfake.BlackholeProduce(), kfake.SeedTopics(partitions, "shop.order"))
			p, _ := start(b, c.config())
			events := make([]publisher.Event, 1000)
			for i := range events {
				events[i] = event(uint64(i), fmt.Sprintf("order-%d", i), fmt.Sprintf("%0350d", i))
			}
			ctx := within(b)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				if err := p.Publish(ctx, events[n%len(events)]); err != nil {
					b.Fatal(err)
				}
				n++
			}
			require.NoError(b, p.Flush(ctx))
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
