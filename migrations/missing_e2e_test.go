//go:build e2e

package migrations_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
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
			if side == migrations.Outbox {
				tablesRemade(t, pool, m)
			}
			exec(t, pool, "DROP TABLE onceward."+tables[0]+" CASCADE")
			_, err = m.UpSQL(t.Context())
			require.ErrorIs(t, err, migrations.ErrTableGone)
			require.ErrorContains(t, err, "restore the database from a backup")
		})
	}
}

// tablesRemade: what the relays write anew needs no backup, so that Up makes those tables.
func tablesRemade(t *testing.T, pool *pgxpool.Pool, m *migrations.Migrator) {
	t.Helper()
	looks := func(table string) string {
		return scalar[string](t, pool, `SELECT string_agg(attname || ' ' || atttypid::regtype || ' ' || attnotnull || ' ' || atthasdef, ', ' ORDER BY attnum)
			|| (SELECT string_agg(pg_get_constraintdef(oid), ', ' ORDER BY 1) FROM pg_constraint WHERE conrelid = attrelid)
			FROM pg_attribute WHERE attnum > 0 AND attrelid = '`+table+`'::regclass GROUP BY attrelid`)
	}
	tables := []string{"onceward.relay_health", "onceward.kafka_topics"}
	var were []string
	for _, table := range tables {
		were = append(were, looks(table))
		exec(t, pool, "DROP TABLE "+table)
	}
	st, err := m.Status(t.Context())
	require.NoError(t, err)
	require.Contains(t, st.Missing, "onceward.relay_health, onceward.kafka_topics. The relays write anew what it held: `outboxctl migrate up --side outbox` makes it again")
	plan, err := m.UpSQL(t.Context())
	require.NoError(t, err)
	require.Contains(t, strings.Join(plan, "\n"), "CREATE TABLE onceward.relay_health")
	exec(t, pool, "ALTER TABLE onceward.gaps RENAME TO elsewhere")
	_, err = m.Up(t.Context())
	require.ErrorContains(t, err, "ALTER TABLE onceward.elsewhere RENAME TO gaps", "another that is gone is said first")
	exec(t, pool, "ALTER TABLE onceward.elsewhere RENAME TO gaps")
	_, err = m.Up(t.Context())
	require.NoError(t, err)
	for i, table := range tables {
		require.Equal(t, were[i], looks(table))
	}
	st, err = m.Status(t.Context())
	require.NoError(t, err)
	require.Empty(t, st.Missing)
}
