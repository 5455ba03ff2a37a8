package publisher_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/publisher"
)

// once publishes an event as soon as its topic has been made.
func once(t *testing.T, p *publisher.Publisher, ev publisher.Event) {
	t.Helper()
	var route *publisher.RouteError
	require.Eventually(t, func() bool {
		err := p.Publish(within(t), ev)
		if errors.As(err, &route) {
			require.True(t, route.Passing, "%v", err)
			return false
		}
		require.NoError(t, err)
		return true
	}, patience, 10*time.Millisecond)
}

// settled returns why an event's topic cannot be used, once it is known whether
// it can be made.
func settled(t *testing.T, p *publisher.Publisher, ev publisher.Event) (route *publisher.RouteError) {
	t.Helper()
	require.Eventually(t, func() bool {
		require.ErrorAs(t, p.Publish(within(t), ev), &route)
		return !route.Passing
	}, patience, 10*time.Millisecond)
	return route
}

func typed(n int, aggregateType string) publisher.Event {
	ev := event(uint64(n), "a", fmt.Sprint(n))
	ev.Row.AggregateType = aggregateType
	return ev
}

// creations counts requests that make topics, which stand still until go is
// closed.
func (c *cluster) creations(gate <-chan struct{}) *atomic.Int32 {
	var n atomic.Int32
	c.ControlKey(int16(kmsg.CreateTopics), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		n.Add(1)
		c.SleepControl(func() { <-gate })
		return nil, nil, false
	})
	return &n
}

// Two hundred events that each need a new topic keep nobody waiting who has one:
// theirs are made beside the stream, those that wait in one request.
func TestNewTopicsHoldNobodyUp(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
	gate := make(chan struct{})
	requests := c.creations(gate)
	cfg := c.config()
	cfg.Topics = publisher.Topics{Create: true, Partitions: 1, ReplicationFactor: 1}
	p, acks := start(t, cfg)
	var route *publisher.RouteError
	for i := range 200 {
		require.ErrorAs(t, p.Publish(within(t), typed(i, fmt.Sprint("new-", i))), &route)
		require.True(t, route.Passing)
	}
	require.NoError(t, p.Publish(within(t), typed(1000, "order")))
	require.NoError(t, p.Flush(within(t)), "while no topic was made yet")
	require.Equal(t, []uint64{1000}, acks.all())
	close(gate)
	for i := range 200 {
		once(t, p, typed(i, fmt.Sprint("new-", i)))
	}
	require.NoError(t, p.Flush(within(t)))
	require.Len(t, acks.all(), 201)
	require.LessOrEqual(t, requests.Load(), int32(3), "the first, and then all the others together")
}

// Rows can name any number of topics; a process makes so many and no more, in
// all its publishers together.
func TestTopicsMadeAreBounded(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
	cfg := c.config()
	cfg.Topics = publisher.Topics{Create: true, Partitions: 1, ReplicationFactor: 1, MaxCreated: 3}
	cfg.Memory = new(publisher.Memory)
	p, _ := start(t, cfg)
	for i := range 2 {
		once(t, p, typed(i, fmt.Sprint("new-", i)))
	}
	require.NoError(t, p.Close())
	p, acks := start(t, cfg)
	once(t, p, typed(2, "new-2"))
	route := settled(t, p, typed(3, "new-3"))
	require.Contains(t, route.Reason, "topics.max_created = 3")
	require.Contains(t, route.Advice(), "topics.allow")
	require.Contains(t, route.Advice(), "then start the relay again")
	once(t, p, typed(0, "new-0"))
	require.NoError(t, p.Publish(within(t), typed(4, "order")))
	require.NoError(t, p.Flush(within(t)))
	require.Len(t, acks.all(), 3)
	require.Nil(t, c.TopicInfo("shop.new-3"))
	require.NoError(t, c.CreateTopic("shop.new-3", 1, nil))
	require.Eventually(t, func() bool { return p.Publish(within(t), typed(3, "new-3")) == nil }, patience, 50*time.Millisecond, "made by hand")
}

// A topic that could not be made was not made: it does not count.
func TestTopicsThatWereNotMadeDoNotCount(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(1))
	cfg := c.config()
	cfg.Memory = new(publisher.Memory)
	cfg.Topics = publisher.Topics{Create: true, Partitions: 1, ReplicationFactor: 5, MaxCreated: 1}
	p, _ := start(t, cfg)
	require.Contains(t, settled(t, p, typed(0, "order")).Reason, "could not be created")
	require.NoError(t, p.Close())
	cfg.Topics.ReplicationFactor = 1
	p, _ = start(t, cfg)
	once(t, p, typed(0, "order"))
}
