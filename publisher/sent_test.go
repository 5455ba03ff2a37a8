package publisher_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
)

// Config.Sent is told of every request and of every record in it, by name of a metric of sarama's:
// another version of it may call it otherwise.
func TestSentIsToldOfEveryRecord(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(3, "shop.order"))
	var requests, records atomic.Int64
	cfg := c.config()
	cfg.Sent = func(n int) {
		requests.Add(1)
		records.Add(int64(n))
	}
	p, _ := start(t, cfg)
	const events = 500
	for n := range events {
		require.NoError(t, p.Publish(within(t), event(uint64(n), fmt.Sprint("k", n%10), "x")))
	}
	require.NoError(t, p.Flush(within(t)))
	require.EqualValues(t, events, records.Load())
	require.Positive(t, requests.Load())
	require.LessOrEqual(t, requests.Load(), int64(events))
}
