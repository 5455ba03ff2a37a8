//go:build e2e

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/onceward/onceward/internal/operator/topics"
	"github.com/onceward/onceward/publisher"
)

// The topics are those that relay check looks at; what is there is left alone.
func TestTopicsAreMadeFromRoutesAndEvents(t *testing.T) {
	pool, dsn := newDatabase(t)
	fine(t, "migrate", "up", "--side", "outbox", "--relay", "orders")
	require.NotContains(t, fine(t, "migrate", "up", "--side", "outbox"), "publication", "it is there")
	enqueue(t, pool, "{}")
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, "fixed"))
	require.NoError(t, err)
	defer cluster.Close()
	config := filepath.Join(t.TempDir(), "relay.yaml")
	text := "name: orders\npostgres: {dsn: \"" + dsn + "\", insecure: true}\noutbox: {start: all}\n" +
		"kafka: {brokers: [\"" + strings.Join(cluster.ListenAddrs(), `", "`) + "\"], insecure: true}\n" +
		"routes: [{match: {aggregate_type: never}, topic: fixed}, {topic: \"{namespace}.{aggregate_type}\"}]\n" +
		"topics: {partitions: 4, replication_factor: 1}\n"
	require.NoError(t, os.WriteFile(config, []byte(text), 0o600))

	planned := decode[topics.Report](t, fine(t, "topics", "create", "--config", config, "--dry-run", "-o", "json"))
	require.Equal(t, []string{"orders.order"}, planned.Made)
	require.Equal(t, []string{"fixed"}, planned.There)
	require.Contains(t, fine(t, "topics", "create", "--config", config), "made orders.order: 4 partitions, replication factor 1")
	out := fine(t, "topics", "create", "--config", config)
	require.Equal(t, "there already: fixed, orders.order\n", out)
	fine(t, "doctor", "--config", config)

	require.NoError(t, os.WriteFile(config, []byte(strings.Replace(text, "kafka: {", "kafka: {mode: exactly-once, ", 1)), 0o600))
	require.Contains(t, fine(t, "topics", "create", "--config", config, "--dry-run"), "would make "+publisher.DefaultCheckpointTopic+": ")
	require.Contains(t, fine(t, "topics", "create", "--config", config), "made "+publisher.DefaultCheckpointTopic+": ")
	require.Equal(t, "there already: fixed, orders.order\n", fine(t, "topics", "create", "--config", config))
	require.NoError(t, os.WriteFile(config, []byte(text), 0o600))

	exec(t, pool, `INSERT INTO onceward.relay_state (slot, relay, database, system_identifier, timeline, confirmed_lsn, publication, kafka_cluster)
		SELECT 'onceward_orders', 'orders', current_database(), system_identifier::text, 1, '0/10', 'onceward_orders', 'another' FROM pg_control_system()`)
	const says = "this is not the cluster that relay orders is bound to"
	for _, more := range [][]string{nil, {"--dry-run"}} {
		code, _, stderr := call(t, append([]string{"topics", "create", "--config", config}, more...)...)
		require.Equal(t, 1, code)
		require.Contains(t, stderr, "no topic was made: "+says)
		require.Contains(t, stderr, "OTHER_KAFKA")
	}
	var key string
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT namespace || ':' || id FROM onceward.outbox LIMIT 1`).Scan(&key))
	exec(t, pool, `INSERT INTO onceward.published_snapshots VALUES ('onceward_orders', pg_current_snapshot(), now())`)
	_, out, _ = call(t, "show", key, "--config", config)
	require.Contains(t, out, "kafka: not searched: "+says)
	require.NotContains(t, out, "outboxctl replay")
}
