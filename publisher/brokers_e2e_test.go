//go:build e2e

package publisher_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward/internal/kafkaserver"
	"github.com/onceward/onceward/publisher"
)

// K1, K2, K10: of three brokers each is killed in turn under load, then two at
// once, which leaves too few replicas, then all. The producer rides it out: no
// error, no loss, no copy, no order broken.
func TestBrokersKilledUnderLoad(t *testing.T) {
	c, err := kafkaserver.Start(t.Context(), kafkaserver.Options{Brokers: 3})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop(context.Background())) })
	require.NoError(t, c.CreateTopic(t.Context(), "shop.order", 1, nil))
	cfg := publisher.Config{Brokers: c.Addrs(), Routes: []publisher.Route{{Topic: "{namespace}.{aggregate_type}"}}}
	p, acks := start(t, cfg)

	ctx, stop := context.WithCancel(t.Context())
	sent := make(chan int, 1)
	go func() {
		n := 0
		for ctx.Err() == nil {
			if p.Publish(ctx, event(uint64(n), "a", fmt.Sprint(n))) == nil {
				n++
			}
			if n%50 == 0 {
				_ = p.Flush(ctx) // at the broker's pace, so that the log stays small
			}
		}
		sent <- n
	}()
	more := func() { // events get through
		from := len(acks.all())
		require.Eventually(t, func() bool { return len(acks.all()) > from+100 }, 4*patience, patience/1000)
	}
	for _, victims := range [][]int{{0}, {1}, {2}, {0, 1}, {0, 1, 2}} {
		more()
		for _, i := range victims {
			c.Kill(i)
		}
		if len(victims) == 1 {
			more() // the other two are enough
		}
		started := make(chan error, len(victims))
		for _, i := range victims { // all at once: they need one another to be ready
			go func() { started <- c.StartBroker(context.Background(), i) }()
		}
		for range victims {
			require.NoError(t, <-started)
		}
	}
	more()
	stop()
	n := <-sent
	flush, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	require.NoError(t, p.Flush(flush))
	require.NoError(t, p.Err())
	require.Len(t, acks.all(), n)
	require.Equal(t, numbers(0, n-1), readCommitted(t, "shop.order", kgo.SeedBrokers(c.Addrs()...)))
}
