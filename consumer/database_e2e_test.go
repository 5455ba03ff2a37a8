//go:build e2e

package consumer_test

import (
	"cmp"
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
)

func TestMain(m *testing.M) {
	if dsn := os.Getenv(redriveTask); dsn != "" {
		os.Exit(redriveOnce(dsn))
	}
	os.Exit(testdb.Main(m))
}

// version is the PostgreSQL of the tests that say none: 15, or what
// ONCEWARD_TEST_POSTGRES says; `make e2e-full` runs them on 18 as well.
func version() string { return cmp.Or(os.Getenv("ONCEWARD_TEST_POSTGRES"), "15") }

// newDatabase makes a database with the consumer's tables and a table of
// effects.
func newDatabase(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := testdb.New(t, version())
	install(t, pool)
	return pool
}

// install makes the consumer's tables, and one of effects.
func install(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	m, err := migrations.New(migrations.Config{Pool: pool, Side: migrations.Consumer})
	require.NoError(t, err)
	_, err = m.Up(t.Context())
	require.NoError(t, err)
	exec(t, pool, `CREATE TABLE effects (event text NOT NULL, consumer_group text NOT NULL)`)
}
