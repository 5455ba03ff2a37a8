package publisher_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/publisher"
)

func TestCheckpointTopicIsChecked(t *testing.T) {
	refused := func(t *testing.T, c *cluster, cfg publisher.Config) *publisher.CheckpointError {
		_, err := publisher.NewTransactional(within(t), cfg, oneSlot())
		var checkpoint *publisher.CheckpointError
		require.ErrorAs(t, err, &checkpoint)
		require.Equal(t, publisher.DefaultCheckpointTopic, checkpoint.Topic)
		require.Contains(t, checkpoint.Cure, "--bootstrap-server "+c.ListenAddrs()[0])
		return checkpoint
	}
	t.Run("missing", func(t *testing.T) {
		c := newCluster(t)
		cfg := c.config()
		cfg.Topics.ReplicationFactor = 2
		err := refused(t, c, cfg)
		require.Contains(t, err.Error(), "does not exist")
		require.Contains(t, err.Cure, "kafka-topics.sh --bootstrap-server "+c.ListenAddrs()[0]+
			" --create --topic onceward.checkpoint --partitions 2 --replication-factor 1 --config cleanup.policy=compact", "no more replicas than brokers")
	})
	t.Run("one partition", func(t *testing.T) {
		c := newCluster(t)
		require.NoError(t, c.CreateTopic(publisher.DefaultCheckpointTopic, 1, map[string]string{"cleanup.policy": "compact"}))
		err := refused(t, c, c.config())
		require.Contains(t, err.Reason, "has 1 partition, must have 2")
		require.Contains(t, err.Cure, "--alter --topic onceward.checkpoint --partitions 2")
	})
	t.Run("three partitions", func(t *testing.T) {
		c := newCluster(t)
		require.NoError(t, c.CreateTopic(publisher.DefaultCheckpointTopic, 3, map[string]string{"cleanup.policy": "compact"}))
		require.Contains(t, refused(t, c, c.config()).Reason, "has 3 partitions, must have 2")
	})
	t.Run("not compacted", func(t *testing.T) {
		c := newCluster(t)
		require.NoError(t, c.CreateTopic(publisher.DefaultCheckpointTopic, 2, map[string]string{"cleanup.policy": "delete"}))
		err := refused(t, c, c.config())
		require.Contains(t, err.Reason, "cleanup.policy = delete")
		require.Contains(t, err.Cure, "kafka-configs.sh")
	})
	t.Run("created", func(t *testing.T) {
		c := newCluster(t, kfake.NumBrokers(3), kfake.SeedTopics(1, "shop.order"))
		cfg := c.config()
		cfg.Topics = publisher.Topics{Create: true, Partitions: 4, ReplicationFactor: 2}
		p := startTransactional(t, cfg, oneSlot())
		info := c.TopicInfo(publisher.DefaultCheckpointTopic)
		require.Len(t, c.PartitionInfos(publisher.DefaultCheckpointTopic), 2)
		require.Equal(t, 2, info.NumReplicas)
		require.Equal(t, "compact", *info.Configs["cleanup.policy"])
		require.NoError(t, p.Commit(within(t), at(1)))
	})
}

func TestUnreadablePolicyIsSaidAndNoReasonToStop(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
	c.checkpointTopic()
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeConfigs}, Err: kerr.TopicAuthorizationFailed, Count: -1})
	logged := &logLines{}
	cfg := c.config()
	cfg.Logger = logged.logger()
	p := startTransactional(t, cfg, oneSlot())
	require.NoError(t, p.Commit(within(t), at(1)))
	require.Equal(t, 1, strings.Count(logged.String(), "DESCRIBE_CONFIGS"))
}
