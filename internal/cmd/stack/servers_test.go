//go:build e2e

package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/process"
)

// The whole life of a stack: up, used, refused twice, down.
func TestAStackComesUpWholeAndGoesDownWithoutATrace(t *testing.T) {
	bin := t.TempDir()
	_, err := process.Run(t.Context(), process.Spec{Path: "go", Args: []string{"build", "-o", bin, "../../../cmd/..."}})
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), "stack")
	t.Cleanup(func() { require.NoError(t, down(context.Background(), dir, os.Stderr)) })
	var said strings.Builder
	require.NoError(t, run(t.Context(), []string{"up", "-dir", dir, "-bin", bin}, &said))
	require.Contains(t, said.String(), "the stack is up")
	require.Regexp(t, `event payments:[0-9a-f-]+ has arrived: topic payments.invoice, partition \d, offset 0`, said.String())
	s, err := load(dir)
	require.NoError(t, err)
	running, gone := s.running()
	require.Len(t, running, 2)
	require.Empty(t, gone)

	brokers, err := os.ReadFile(filepath.Join(dir, "brokers"))
	require.NoError(t, err)
	kafka := func(name string, args ...string) string {
		args = append([]string{"--bootstrap-server", strings.TrimSpace(string(brokers))}, args...)
		out, err := process.Run(t.Context(), process.Spec{Path: filepath.Join(dir, "bin", name), Args: args})
		require.NoError(t, err, name)
		return strings.TrimSpace(out)
	}
	require.Equal(t, "Completed updating config for topic payments.invoice.", kafka("kafka-configs.sh", "--alter",
		"--entity-type", "topics", "--entity-name", "payments.invoice", "--add-config", "max.message.bytes=2000000"), "as a message of the relay prints it")
	require.Equal(t, "Created topic nowhere.", kafka("kafka-topics.sh", "--create", "--topic", "nowhere"), "as a replay prints it")
	require.Contains(t, kafka("kafka-topics.sh", "--describe", "--topic", "nowhere"), "PartitionCount: 1")
	require.Contains(t, kafka("kafka-consumer-groups.sh", "--version"), "4.1.1")
	require.Contains(t, kafka("kafka-acls.sh", "--version"), "4.1.1")

	dsn, err := os.ReadFile(filepath.Join(dir, "producer.dsn"))
	require.NoError(t, err)
	conn, err := pgx.Connect(t.Context(), strings.TrimSpace(string(dsn)))
	require.NoError(t, err)
	var publication string
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT pubname FROM pg_publication WHERE pubname LIKE '%'||$1", relayName).Scan(&publication))
	require.NoError(t, conn.Close(t.Context()))
	dsn, err = os.ReadFile(filepath.Join(dir, relayFile))
	require.NoError(t, err)
	conn, err = pgx.Connect(t.Context(), strings.TrimSpace(string(dsn)))
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "SELECT FROM onceward.relay_state")
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "DELETE FROM onceward.outbox")
	require.ErrorContains(t, err, "permission denied", "the relay has no more than its own rights")
	require.NoError(t, conn.Close(t.Context()))
	require.ErrorContains(t, run(t.Context(), []string{"up", "-dir", dir, "-bin", bin}, &said), "is running already")

	require.NoError(t, run(t.Context(), []string{"down", "-dir", dir}, &said))
	running, _ = s.running()
	require.Empty(t, running)
	require.NoDirExists(t, dir)
	for _, server := range s.Servers {
		require.False(t, process.Runs(server.PID, server.Marker))
		require.NoDirExists(t, server.Dir)
	}
}

func TestAStackThatFailsHalfWayIsTakenDown(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "stack")
	bin := t.TempDir()
	for _, name := range []string{"relay", "outboxctl"} {
		require.NoError(t, os.Symlink("/bin/false", filepath.Join(bin, name)))
	}
	err := run(t.Context(), []string{"up", "-dir", dir, "-bin", bin}, os.Stderr)
	require.ErrorContains(t, err, "install the tables of the outbox side")
	require.NoDirExists(t, dir)
}
