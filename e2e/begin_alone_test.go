//go:build e2e

package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// TestOneBegins: of two processes of a slot one begins anew, and the other stands by
// though nobody streams: it neither takes the slot nor raises the epoch, by which it
// would void what the first waits for. Killed while it waits, the first leaves its
// place to the other.
func TestOneBegins(t *testing.T) {
	onVersions(t, func(t *testing.T, version string) {
		w := settled(t, version)
		first := startRelay(t, w, "checkpoint_interval: 100ms")
		caughtUp(t, w, first)
		first.stop()
		lost := writeOne(t, w)
		eventually(t, "the slot is free", 30*time.Second, func() bool {
			return scalar[bool](w, `SELECT NOT active FROM pg_replication_slots WHERE slot_name = $1`, w.slot())
		})
		w.execute(`SELECT pg_replication_slot_advance($1, pg_current_wal_insert_lsn())`, w.slot())
		open := leaveOpen(t, w)
		first.start()
		const waits = "the start waits for transactions that were open when it began"
		eventually(t, "the first waits", 30*time.Second, func() bool { return first.logs(waits) })
		epoch := func() int64 { return scalar[int64](w, `SELECT epoch FROM onceward.relay_state`) }
		before := epoch()

		second := startTwin(t, w, "checkpoint_interval: 100ms")
		eventually(t, "the second stands by", 15*time.Second, func() bool { return second.logs("standby: another process holds the slot") })
		opened := func() int {
			return scalar[int](w, `SELECT sessions FROM pg_stat_database WHERE datname = current_database()`)
		}
		began := opened()
		for range 5 {
			last := looked(w)
			eventually(t, "it looks again", 10*time.Second, func() bool { return looked(w) != last })
		}
		require.Equal(t, before, epoch(), "nobody takes the slot from under who begins")
		require.Zero(t, sessions(second))
		require.Less(t, opened()-began, 6, "it looks by the one connection that it has")
		require.False(t, second.logs("gap"))

		first.kill()
		eventually(t, "the second waits in its place", 30*time.Second, func() bool { return second.logs(waits) })
		first.start()
		require.NoError(t, open.Commit(context.WithoutCancel(t.Context())))
		eventually(t, "the second begins", 30*time.Second, func() bool { return second.logs("the gap is repaired") })
		caughtUp(t, w, second)
		eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
		first.stop()
		second.stop()
		states, copies := requireTrue(t, w)
		require.Equal(t, scalar[int](w, `SELECT count(*) FROM onceward.outbox`), states["published"])
		require.Zero(t, copies)
		require.Equal(t, 1, w.published()[lost])
		require.Equal(t, 1, scalar[int](w, `SELECT count(*) FROM onceward.gaps WHERE cause = 'SLOT_ADVANCED'`))
	})
}

// leaveOpen is a transaction that has an id and has not ended.
func leaveOpen(t *testing.T, w *environment) pgx.Tx {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), w.dsn(appLogin))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SELECT pg_current_xact_id()`)
	require.NoError(t, err)
	return tx
}

// looked is when a standby of any slot looked last whether its slot is free.
func looked(w *environment) string {
	w.t.Helper()
	return scalar[string](w, `SELECT coalesce(max(query_start)::text, '') FROM pg_stat_activity
		WHERE application_name LIKE 'onceward process %' AND query ~ 'Slot(Active|Stranger)'`)
}
