package publisher_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/publisher"
)

// Usable hands nothing over and asks about as many topics as there are: those
// that are refused are looked up together, so that each heals soon.
func TestManyRefusedTopicsAreLookedUpTogether(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
	p, acks := start(t, c.config())
	require.NoError(t, p.Usable(within(t), typed(0, "order")))
	const missing = 600
	name := func(n int) string { return fmt.Sprint("missing-", n) }
	for n := range missing {
		require.ErrorIs(t, p.Usable(within(t), typed(0, name(n))), publisher.ErrRoute)
	}
	create := kmsg.NewPtrCreateTopicsRequest()
	for _, n := range []int{0, 300, 599} {
		topic := kmsg.NewCreateTopicsRequestTopic()
		topic.Topic, topic.NumPartitions, topic.ReplicationFactor = "shop."+name(n), 1, 1
		create.Topics = append(create.Topics, topic)
	}
	admin[*kmsg.CreateTopicsResponse](c, create)
	<-time.After(1100 * time.Millisecond) // what was found stands for a second
	for n := range missing {
		_ = p.Usable(within(t), typed(0, name(n))) // each asks to be looked up, in one instant
	}
	for _, n := range []int{0, 300, 599} {
		require.Eventually(t, func() bool { return p.Usable(within(t), typed(0, name(n))) == nil }, 5*time.Second, 20*time.Millisecond, name(n))
	}
	require.ErrorIs(t, p.Usable(within(t), typed(0, name(1))), publisher.ErrRoute)
	require.NoError(t, p.Flush(within(t)))
	require.Empty(t, acks.all())
	require.Empty(t, c.values("shop.order"))
}
