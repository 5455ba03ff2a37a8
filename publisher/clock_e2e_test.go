//go:build e2e

package publisher_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/kafkaproxy"
	"github.com/onceward/onceward/publisher"
)

// K23: a real broker says of a clock that is too far from its own what is taken
// for that, and for no record's fault. (Here the topic allows a millisecond, and
// the record is held up for longer.)
func TestAClockThatABrokerRefuses(t *testing.T) {
	s := newScene(t)
	strict := s.topic + "-strict"
	require.NoError(t, s.CreateTopic(t.Context(), strict, 1, map[string]string{"message.timestamp.before.max.ms": "1"}))
	cfg := s.config()
	cfg.Routes = []publisher.Route{{Match: publisher.Match{AggregateType: "strict"}, Topic: strict}, {Topic: s.topic}}
	cfg.Memory = new(publisher.Memory)
	p, _ := start(t, cfg)
	held := s.inject(kafkaproxy.Produce, kafkaproxy.Hold)
	require.NoError(t, p.Publish(within(t), typed(0, "strict")))
	s.hit(held, 1)
	<-time.After(10 * time.Millisecond) // of the record's age
	held.Release()
	err := p.Flush(within(t))
	var lost *publisher.LostRouteError
	require.ErrorAs(t, err, &lost)
	require.Equal(t, strict, lost.Route)
	require.ErrorContains(t, err, "this relay's clock and the broker's differ")
	require.NoError(t, p.Close())

	p, acks := start(t, cfg)
	var route *publisher.RouteError
	require.ErrorAs(t, p.Publish(within(t), typed(0, "strict")), &route)
	require.Contains(t, route.Reason, "by this relay's clock")
	require.NoError(t, p.Publish(within(t), typed(1, "order")))
	require.NoError(t, p.Flush(within(t)))
	require.Equal(t, []uint64{1}, acks.all(), "others go on")
}
