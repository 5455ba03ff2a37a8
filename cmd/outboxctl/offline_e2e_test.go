//go:build e2e

package main

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator/partitions"
	"github.com/onceward/onceward/internal/partition"
)

// TestAConfigurationWithoutItsSecrets: who needs the routes or the days of relay.yaml needs
// none of the files that it names, nor the database that the relay's environment names.
func TestAConfigurationWithoutItsSecrets(t *testing.T) {
	pool, _ := newDatabase(t)
	fine(t, "migrate", "up", "--side", "outbox")
	exec(t, pool, insertState, "onceward_ctl")
	nowhere := filepath.Join(t.TempDir(), "nowhere")
	const own = "name: ctl\nroutes: [{topic: orders.order}]\noutbox: {partitions: {ahead: 20, keep: 30}}\n"
	kafka := "kafka: {brokers: [b:9093], tls: {ca_file: " + nowhere + "}, sasl: {mechanism: PLAIN, username: u, password_file: " + nowhere + "}}\n"
	for name, database := range map[string]string{"its file is not here": "postgres: {dsn_file: " + nowhere + "}\n", "it is in another environment": ""} {
		t.Run(name, func(t *testing.T) {
			config := configFile(t, own+kafka+database)
			code, _, said := call(t, "pause", "--config", config, "--route", "orders.ordr")
			require.Equal(t, exitUsage, code)
			require.Contains(t, said, "did you mean orders.order?")
			require.Contains(t, fine(t, "pause", "--config", config, "--route", "orders.order"), "route orders.order is paused")

			day := partition.Day(time.Now()).AddDate(0, 0, -9)
			made, err := partition.Ensure(t.Context(), pool, "onceward.outbox", "id", partition.Span{First: day, Last: day, Reopen: true})
			require.NoError(t, err)
			old := func(args ...string) (state string) {
				report := decode[partitions.Report](t, fine(t, append([]string{"partitions", "maintain", "-o", "json"}, args...)...))
				for _, leaf := range report.Leaves {
					if leaf.Name == partition.OfDay("outbox", day).Name {
						state = leaf.State
					}
				}
				return state
			}
			require.LessOrEqual(t, len(made), 1)
			require.Equal(t, "open", old("--config", config), "relay.yaml keeps it")
			require.Contains(t, fine(t, "partitions", "status", "--config", config), "20 days ahead are covered\nwanted ahead: 20 days; kept, not made: 30 days before today")
			require.Contains(t, fine(t, "partitions", "status", "--config", config, "--ahead", "3", "--keep", "1"), "wanted ahead: 3 days; kept, not made: 1 day before today")
			require.Equal(t, "waiting", old("--config", config, "--keep", "8"), "a flag wins")
			exec(t, pool, "DROP TABLE onceward."+partition.OfDay("outbox", day).Name)
		})
	}
	code, _, said := call(t, "partitions", "maintain", "--side", "consumer", "--config", "relay.yaml")
	require.Equal(t, exitUsage, code)
	require.Contains(t, said, "--config is only for --side outbox")
	config := configFile(t, own+"kafka: {brokers: []}\n")
	code, _, said = call(t, "partitions", "maintain", "--config", config)
	require.Equal(t, exitFailed, code)
	require.Contains(t, said, "kafka.brokers")
}
