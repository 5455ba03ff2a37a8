//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
)

// TestARetiredNameBeginsAnew: what a relay had published is forgotten with it, also
// its letters that were released: one of the same name, whose topics are made anew,
// publishes every event.
func TestARetiredNameBeginsAnew(t *testing.T) {
	t.Parallel()
	w := settled(t, versions[1])
	limit := func(bytes string) {
		require.NoError(t, w.admin.IncrementalAlterConfig(sarama.TopicResource, w.topic(), map[string]sarama.IncrementalAlterConfigsEntry{
			"max.message.bytes": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &bytes},
		}, false))
	}
	limit("2000")
	relay := startRelay(t, w, "outbox: {start: all}", "checkpoint_interval: 50ms")
	events := &replays{environment: w}
	large := events.enqueue("order", "a", make([]byte, 5000))
	events.small("a")
	eventually(t, "both are letters", 30*time.Second, func() bool { return scalar[int](w, `SELECT count(*) FROM onceward.dead_letters`) == 2 })
	limit("1000000")
	eventually(t, "both are released", time.Minute, func() bool {
		out, _ := asked(t, w.dsn(operatorLogin), "dead", "retry", large, "--reason", "limit raised", "--yes", "--wait", "10s")
		return strings.Contains(out, "2 done")
	})
	caughtUp(t, w, relay)
	relay.stop()
	requireTrue(t, w)

	loseSlot(t, w)
	outboxctl(t, w.dsn(operatorLogin), "retire", "--relay", w.name, "--reason", "Kafka is made anew", "--yes")
	require.NoError(t, w.admin.DeleteTopic(w.topic()))
	eventually(t, "the topic is made anew", 30*time.Second, func() bool {
		return w.admin.CreateTopic(w.topic(), &sarama.TopicDetail{NumPartitions: w.partitions, ReplicationFactor: 1}, false) == nil
	})
	relay.start()
	eventually(t, "it begins anew", 30*time.Second, func() bool { return scalar[int](w, `SELECT count(*) FROM onceward.relay_state`) == 1 })
	caughtUp(t, w, relay)
	eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
	relay.stop()
	states, copies := requireTrue(t, w)
	require.Equal(t, map[string]int{"published": scalar[int](w, `SELECT count(*) FROM onceward.outbox`)}, states)
	require.Zero(t, copies)
}
