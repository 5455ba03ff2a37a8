package relay

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/publisher"
)

// TestATransactionThatIsHalfReadIsBehind: a transaction counts from its first
// item on, while its events are held, and while they have ended and its commit
// has not come.
func TestATransactionThatIsHalfReadIsBehind(t *testing.T) {
	committed := time.Now().Add(-time.Minute)
	for name, refuse := range map[string]func(publisher.Event) error{
		"handed over": nil,
		"held":        func(publisher.Event) error { return &publisher.RouteError{Route: "shop.order", Reason: "is missing"} },
	} {
		sink := newFakeSink()
		sink.refuse = refuse
		p := testPipeline(sink)
		it := event(200)
		it.CommitTime = committed
		require.NoError(t, p.take(t.Context(), []cdc.Item{it}))
		now, err := p.status()
		require.NoError(t, err)
		require.Equal(t, committed, now.oldest, name)
		p.counts.observe(now, 100, 0)
		require.InDelta(t, 60, p.counts.stats().Lag.Seconds(), 5, name)
	}
}

func TestEarlierTakesZeroForNone(t *testing.T) {
	a, b := time.Unix(1, 0), time.Unix(2, 0)
	require.Equal(t, a, earlier(a, b))
	require.Equal(t, a, earlier(b, a))
	require.Equal(t, a, earlier(a, time.Time{}))
	require.Equal(t, a, earlier(time.Time{}, a))
	require.Zero(t, earlier(time.Time{}, time.Time{}))
}
