//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// TestRowSecurityWhileItStreams: row-level security is switched on by hand, without the
// policies that our command makes, under a relay that streams. It never takes what
// it cannot see for nothing: a table that it asks stops it by name, and where it asks nothing
// it has nothing to miss: events come by the log, which no policy filters, and letters and
// waiting rows are asked for when there is one. The printed cure lets it go on.
func TestRowSecurityWhileItStreams(t *testing.T) {
	t.Parallel()
	stops := map[string]bool{"relay_state": true, "published_snapshots": true, "gaps": true}
	for i, mode := range []string{"idempotent", "exactly-once"} {
		t.Run(mode+"/PostgreSQL"+versions[i], func(t *testing.T) {
			if !full() && mode == "idempotent" {
				t.Skip("both in the long form")
			}
			w := ownEnvironment(t, versions[i], nil) // beside others the relay's role may have BYPASSRLS: it stays once a producer was bound
			w.prepareTables()
			r := w.newRelay(w.config("checkpoint_interval: 50ms", `admin: {listen: "off"}`), "").inMode(mode)
			starts := 0
			begin := func() {
				r.start()
				starts++
				eventually(t, "the relay streams", time.Minute, func() bool { return sessions(r) >= starts })
			}
			for _, table := range []string{"relay_state", "outbox", "published_snapshots", "dead_letters", "waiting", "gaps"} {
				begin()
				caughtUp(t, w, r)
				w.execute("ALTER TABLE onceward." + table + " ENABLE ROW LEVEL SECURITY")
				ended := r.stopsOrCovers(writeXid(w))
				require.Equal(t, stops[table], ended, "%s stops it", table)
				w.execute("ALTER TABLE onceward." + table + " DISABLE ROW LEVEL SECURITY")
				if ended {
					require.Contains(t, r.log(), "ROW_SECURITY: ")
					begin()
				}
				caughtUp(t, w, r)
				eventually(t, "nothing is pending", time.Minute, func() bool { return owed(w) == 0 })
				r.stop()
				states, _ := requireTrue(t, w)
				require.Equal(t, map[string]int{"published": scalar[int](w, `SELECT count(*) FROM onceward.outbox`)}, states)
			}
		})
	}
}

// writeXid commits an event as the superuser, whom no policy concerns, and returns its
// transaction's id.
func writeXid(w *environment) (xid string) {
	w.t.Helper()
	require.NoError(w.t, pgx.BeginFunc(w.t.Context(), w.pool, func(tx pgx.Tx) error {
		if _, err := (&writers{namespace: w.name}).row(w.t.Context(), tx, 0, "a-0"); err != nil {
			return err
		}
		return tx.QueryRow(w.t.Context(), `SELECT pg_current_xact_id()::text`).Scan(&xid)
	}))
	return xid
}

// stopsOrCovers waits until the relay has ended, which is true, or has written a
// published snapshot that sees a transaction.
func (r *relayProcess) stopsOrCovers(xid string) (stops bool) {
	r.w.t.Helper()
	eventually(r.w.t, "the relay stops, or publishes on", 30*time.Second, func() bool {
		select {
		case <-r.process.Done():
			stops = true
		default:
		}
		return stops || scalar[bool](r.w, `SELECT pg_visible_in_snapshot($1::xid8, snapshot) FROM onceward.published_snapshots`, xid)
	})
	return stops
}
