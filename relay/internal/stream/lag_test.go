package stream

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
		p := testPump(sink)
		it := event(200)
		it.CommitTime = committed
		require.NoError(t, p.take(t.Context(), []cdc.Item{it}))
		now, err := p.status()
		require.NoError(t, err)
		require.Equal(t, committed, now.Oldest, name)
	}
}
