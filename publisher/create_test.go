package publisher_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/onceward/onceward/publisher"
)

// Whatever topics.create says: this is an order.
func TestCreateTopicsMakesWhatIsMissing(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(3, "shop.order"))
	cfg := c.config()
	cfg.Topics.Create, cfg.Topics.Partitions, cfg.Topics.ReplicationFactor, cfg.Topics.MaxCreated = false, 5, 1, 1
	topics := []string{"shop.order", "shop.b", "shop.a"}
	made, refused, err := publisher.CreateTopics(t.Context(), cfg, topics)
	require.NoError(t, err)
	require.Empty(t, refused)
	require.Equal(t, []string{"shop.a", "shop.b"}, made)
	reports, err := publisher.Inspect(t.Context(), cfg, topics)
	require.NoError(t, err)
	require.Equal(t, []int{3, 5, 5}, []int{reports[0].Partitions, reports[1].Partitions, reports[2].Partitions})

	made, refused, err = publisher.CreateTopics(t.Context(), cfg, topics)
	require.NoError(t, err)
	require.Empty(t, refused)
	require.Empty(t, made)
}

func TestCreateTopicsSaysWhatWasRefused(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(1))
	cfg := c.config()
	cfg.Topics.ReplicationFactor = 3
	made, refused, err := publisher.CreateTopics(t.Context(), cfg, []string{"shop.a"})
	require.NoError(t, err)
	require.Empty(t, made)
	require.Len(t, refused, 1)
	require.ErrorContains(t, refused[0], `topic "shop.a" does not exist, and could not be created`)
	require.ErrorContains(t, refused[0], "set topics.replication_factor of the relay's configuration, which is 3, to 1, for there are no more brokers; then create it with `outboxctl topics create --config FILE`")
}
