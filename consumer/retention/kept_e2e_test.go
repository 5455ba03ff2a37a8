//go:build e2e

package retention_test

import (
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer/internal/claimstest"
	"github.com/onceward/onceward/consumer/retention"
	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
)

func TestMain(m *testing.M) { os.Exit(testdb.Main(m)) }

const week = claimstest.Week

// kept is a database with a maintainer that can be killed.
type kept struct{ *claimstest.Database }

func newKept(t *testing.T, version string) *kept {
	t.Helper()
	return &kept{claimstest.New(t, version)}
}

func onBoth(t *testing.T, test func(*kept)) {
	t.Helper()
	claimstest.OnBoth(t, func(d *claimstest.Database) { test(&kept{d}) })
}

// kill ends the maintainer's session from outside, and waits until its locks are
// gone; the next run has another session.
func (k *kept) kill() {
	k.T.Helper()
	pid := k.Conn.PgConn().PID()
	k.Exec("SELECT pg_terminate_backend($1)", int32(pid))
	require.Eventually(k.T, func() bool {
		return k.Text("SELECT count(*)::text FROM pg_stat_activity WHERE pid = $1", int32(pid)) == "0"
	}, 10*time.Second, 5*time.Millisecond)
	k.Conn = k.Dial(migrations.RoleConsumerMaintainer)
}

// crashAt kills the session at a point of the run.
func (k *kept) crashAt(point string) {
	k.T.Helper()
	_, err := k.Run(func(c *retention.Config) {
		*c = c.With(nil, func(at string) {
			if at == point {
				k.kill()
			}
		})
	})
	require.Error(k.T, err, "killed after %s", point)
}

func dry(c *retention.Config) { c.DryRun = true }

func ahead(days int) func(*retention.Config) {
	return func(c *retention.Config) { c.Ahead = days }
}

// holding is an open transaction that has run a statement.
func (k *kept) holding(role migrations.Role, sql string, args ...any) pgx.Tx {
	k.T.Helper()
	tx, err := k.Dial(role).Begin(k.T.Context())
	require.NoError(k.T, err)
	_, err = tx.Exec(k.T.Context(), sql, args...)
	require.NoError(k.T, err)
	return tx
}

// reader has read the table, so that a detach waits.
func (k *kept) reader() pgx.Tx {
	k.T.Helper()
	return k.holding(migrations.RoleConsumer, "SELECT FROM "+claims.Table)
}

func (k *kept) end(tx pgx.Tx) {
	k.T.Helper()
	require.NoError(k.T, tx.Rollback(k.T.Context()))
}

func (k *kept) detachPending() bool {
	return k.Text("SELECT count(*)::text FROM pg_inherits WHERE inhdetachpending") == "1"
}
