//go:build e2e

package migrations_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
)

// What relays have published, and what they know of their publication, is taken
// over from the schema before, and given back.
func TestPublishedSnapshotsAreTakenOver(t *testing.T) {
	pool := testdb.New(t, "15")
	up(t, pool, migrations.Outbox, "orders")
	exec(t, pool, `INSERT INTO onceward.relay_state (slot, relay, database, system_identifier, timeline, confirmed_lsn, publication, publication_catalog)
		VALUES ('onceward_orders', 'orders', 'd', '1', 1, '0/1', 'onceward_orders', 'publication 1')`)
	exec(t, pool, `INSERT INTO onceward.published_snapshots VALUES ('onceward_orders', '10:20:10,14', '2026-11-22 00:00Z')`)
	for _, name := range []string{"00014_adoption.sql", "00013_proofs.sql", "00012_attachings.sql", "00011_kafka.sql", "00010_waiting.sql", "00009_decisions.sql", "00008_principals.sql", "00007_gaps.sql"} {
		file, err := os.ReadFile("outbox/" + name)
		require.NoError(t, err)
		_, down, ok := strings.Cut(string(file), "-- +goose Down")
		require.True(t, ok)
		exec(t, pool, down)
	}
	exec(t, pool, "DELETE FROM onceward.outbox_migrations WHERE version_id >= 7")
	require.Equal(t, "10:20:10,14", scalar[string](t, pool, "SELECT published_snapshot::text FROM onceward.relay_state"))
	up(t, pool, migrations.Outbox, "orders")
	require.Equal(t, "10:20:10,14 2026-11-22 00:00:00+00", scalar[string](t, pool, "SELECT snapshot || ' ' || taken_at FROM onceward.published_snapshots"))
	require.Equal(t, "publication 1 xmin "+scalar[string](t, pool, "SELECT xmin::text FROM pg_publication"), scalar[string](t, pool, "SELECT publication_catalog FROM onceward.relay_state"),
		"what is compared with the publication knows its row from now on")
}
