//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTheRelayMakesPartitions: with the maintainer's DSN the relay keeps the
// table's partitions while it publishes; without it, it leaves them alone.
func TestTheRelayMakesPartitions(t *testing.T) {
	t.Parallel()
	w := newEnvironment(t, versions[0])
	w.install()
	_, err := w.pool.Exec(t.Context(), `DO $$ BEGIN EXECUTE (SELECT 'DROP TABLE ' || inhrelid::regclass FROM pg_inherits
		WHERE inhparent = 'onceward.outbox'::regclass ORDER BY inhrelid::regclass::text DESC LIMIT 1); END $$`)
	require.NoError(t, err)
	count := func() int {
		return scalar[int](w, `SELECT count(*) FROM pg_inherits WHERE inhparent = 'onceward.outbox'::regclass`)
	}
	before := count()
	r := w.newRelay(w.config(`admin: {listen: "off"}`), "")
	r.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
	require.Equal(t, before, count())
	r.stop()
	dsn := filepath.Join(t.TempDir(), "maintenance.dsn")
	require.NoError(t, os.WriteFile(dsn, []byte(w.server.DSN(w.name)), 0o600))
	r.env = append(r.env, "ONCEWARD_POSTGRES_MAINTENANCE_DSN_FILE="+dsn)
	r.start()
	eventually(t, "the partition is made again", 30*time.Second, func() bool { return count() == before+1 })
	r.stop()
}
