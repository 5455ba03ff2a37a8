package publisher_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/onceward/onceward/publisher"
)

// heap returns the bytes that live objects take.
func heap() int64 {
	runtime.GC()
	runtime.GC() // what the first one's finalizers held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// With 100 partitions and no broker to be reached, a publisher takes
// MaxInFlightBytes, and what sarama makes per partition, however much is to be
// published: small records cost as much as they count, not ten times that.
func TestMemoryWithAHundredPartitionsAndNoKafka(t *testing.T) {
	const partitions, perPartition = 100, 128 << 10 // retry states (32 KiB), channels of 256, goroutines' stacks
	c := newCluster(t, kfake.SeedTopics(partitions, "shop.order"))
	network := newCuttingDialer()
	cfg := c.config()
	cfg.Dial = network.dial
	cfg.MaxInFlightBytes = publisher.DefaultMaxInFlightBytes
	p, _ := start(t, cfg)
	publishNumbered(t, p, "a", 0, 0)
	require.NoError(t, p.Flush(within(t)))
	network.setDown(true)
	before := heap()

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	blocked := make(chan struct{})
	go func() {
		defer close(blocked)
		ev := event(0, "", "0123456789")
		for i := 0; ; i++ {
			ev.Row = row(numbers(i, i)[0], "0123456789") // rows of their own, as the log's reader makes them
			if p.Publish(ctx, ev) != nil {
				return
			}
		}
	}()
	full := func() bool {
		_, bytes := p.InFlight()
		return bytes > cfg.MaxInFlightBytes-2000
	}
	require.Eventually(t, full, patience, 10*time.Millisecond)
	grown := heap() - before
	events, bytes := p.InFlight()
	t.Logf("%d events, counted %d KiB, heap grew by %d KiB", events, bytes>>10, grown>>10)
	require.Greater(t, events, int64(5000))
	require.LessOrEqual(t, bytes, cfg.MaxInFlightBytes)
	require.LessOrEqual(t, grown, cfg.MaxInFlightBytes+partitions*perPartition)
	cancel()
	<-blocked
}
