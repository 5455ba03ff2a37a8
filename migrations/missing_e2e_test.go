//go:build e2e

package migrations_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
)

// Up makes no table a second time: it says which is gone, and where it is if it was
// renamed; and so of every table that the schema has.
func TestUpSaysWhatBecameOfATable(t *testing.T) {
	for _, side := range []migrations.Side{migrations.Outbox, migrations.Consumer} {
		t.Run(string(side), func(t *testing.T) {
			pool := testdb.New(t, "15")
			m := migrator(t, pool, side)
			_, err := m.Up(t.Context())
			require.NoError(t, err)
			tables := scalar[[]string](t, pool, `SELECT array_agg(relname::text) FROM pg_class WHERE relnamespace = 'onceward'::regnamespace
				AND relkind IN ('r', 'p') AND NOT relispartition AND relname NOT LIKE '%_migrations'`)
			require.Greater(t, len(tables), 8)
			for _, table := range tables {
				exec(t, pool, "ALTER TABLE onceward."+table+" RENAME TO elsewhere")
				_, err = m.Up(t.Context())
				require.ErrorIs(t, err, migrations.ErrTableGone, table)
				require.ErrorContains(t, err, "onceward."+table+" is onceward.elsewhere now. To mend it: ALTER TABLE onceward.elsewhere RENAME TO "+table+";")
				st, err := m.Status(t.Context())
				require.NoError(t, err)
				require.Contains(t, st.Missing, "ALTER TABLE")
				exec(t, pool, "ALTER TABLE onceward.elsewhere RENAME TO "+table)
			}
			_, err = m.Up(t.Context())
			require.NoError(t, err)
			exec(t, pool, "DROP TABLE onceward."+tables[0]+" CASCADE")
			_, err = m.UpSQL(t.Context())
			require.ErrorIs(t, err, migrations.ErrTableGone)
			require.ErrorContains(t, err, "restore the database from a backup")
		})
	}
}
