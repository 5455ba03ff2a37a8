//go:build e2e

package outboxdb_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
)

// What is known of the publication changes with everything that can keep a row
// of the relay's tables from being sent, though it looks as before again, and
// with nothing else.
func TestTakeSnapshotSeesThePublication(t *testing.T) {
	for _, version := range []string{"15", "18"} {
		t.Run("PostgreSQL"+version, func(t *testing.T) {
			pool := testdb.New(t, version)
			m, err := migrations.New(migrations.Config{Pool: pool, Side: migrations.Outbox, Relay: "orders"})
			require.NoError(t, err)
			_, err = m.Up(t.Context())
			require.NoError(t, err)
			known := func() string {
				s, err := outboxdb.New(pool).TakeSnapshot(t.Context(), outboxdb.TakeSnapshotParams{Publication: "onceward_orders", Slot: "onceward_orders"})
				require.NoError(t, err)
				return s.PublicationCatalog
			}
			before := known()
			require.NotEqual(t, "none", before)
			for _, harmless := range []string{
				`CREATE TABLE other (x int); ALTER PUBLICATION onceward_orders ADD TABLE other`,
				`ALTER PUBLICATION onceward_orders DROP TABLE other`,
				`ALTER PUBLICATION onceward_orders SET TABLE onceward.outbox, onceward.replays, onceward.controls`,
				`CREATE PUBLICATION another FOR TABLE onceward.outbox`,
				`VACUUM FULL pg_publication_rel`,
				`VACUUM FREEZE pg_publication_rel`,
				`ALTER TABLE onceward.replays ADD COLUMN note text`,
				`TRUNCATE onceward.controls`,
			} {
				exec(t, pool, harmless)
				require.Equal(t, before, known(), harmless)
			}
			seen := map[string]bool{before: true}
			for _, table := range []string{"outbox", "replays", "controls"} {
				for _, change := range []string{
					`ALTER PUBLICATION onceward_orders DROP TABLE onceward.` + table,
					`ALTER PUBLICATION onceward_orders ADD TABLE onceward.` + table,
				} {
					exec(t, pool, change)
					require.False(t, seen[known()], "%s: %s", change, known())
					seen[known()] = true
				}
			}
			for _, change := range []string{
				`ALTER PUBLICATION onceward_orders SET TABLE onceward.outbox, onceward.replays WHERE (mode = 'redeliver'), onceward.controls`,
				`ALTER PUBLICATION onceward_orders SET TABLE onceward.outbox, onceward.replays, onceward.controls`,
				`ALTER PUBLICATION onceward_orders SET (publish = 'insert, update')`,
				`DROP PUBLICATION onceward_orders; CREATE PUBLICATION onceward_orders FOR TABLE onceward.outbox, onceward.replays, onceward.controls`,
				`ALTER PUBLICATION onceward_orders SET (publish = '')`,
			} {
				exec(t, pool, change)
				require.False(t, seen[known()], "%s: %s", change, known())
				seen[known()] = true
			}
			exec(t, pool, `DROP PUBLICATION onceward_orders`)
			require.Equal(t, "none", known())
		})
	}
}
