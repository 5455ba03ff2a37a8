//go:build e2e

package migrations_test

import (
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/testdb"
)

func TestMain(m *testing.M) { os.Exit(testdb.Main(m)) }

func newDatabase(t *testing.T) *pgxpool.Pool {
	t.Helper()
	return testdb.New(t, "15")
}
