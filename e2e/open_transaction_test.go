//go:build e2e

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestOpenTransactionPinsTheLog: a transaction that has written and stays open
// makes the server keep the log from its start on, although the relay has
// confirmed everything. That is not the relay's lag, and what it measures tells
// the two apart.
func TestOpenTransactionPinsTheLog(t *testing.T) {
	const noise = 24 << 20
	onVersions(t, func(t *testing.T, version string) {
		w := newEnvironment(t, version)
		r := streaming(t, w, "checkpoint_interval: 100ms")
		caughtUp(t, w, r)
		open, err := w.pool.Begin(t.Context())
		require.NoError(t, err)
		defer open.Rollback(t.Context())
		_, err = open.Exec(t.Context(), `INSERT INTO business VALUES ('held open')`)
		require.NoError(t, err)

		foreignLog(w, noise)
		caughtUp(t, w, r)
		var lag, kept int64
		eventually(t, "the relay has confirmed what there is", 10*time.Second, func() bool {
			lag, kept = w.slotBytes()
			return lag < 1<<20
		})
		require.Greater(t, kept, int64(noise), "and yet the server keeps it")
		pid := open.Conn().PgConn().PID()
		eventually(t, "the relay measures it, and names what pins it", 30*time.Second, func() bool {
			retained, _ := metric(t, r, "onceward_slot_retained_bytes")
			age, _ := metric(t, r, "onceward_oldest_transaction_seconds")
			return retained > noise && age > 0 && r.logs("an open transaction pins log") && r.logs(fmt.Sprintf("pid %d", pid))
		})
		behind, _ := metric(t, r, "onceward_slot_lag_bytes")
		require.Less(t, behind, float64(1<<20), "not to be taken for the relay's own lag")

		require.NoError(t, open.Commit(t.Context()))
		var after int64
		eventually(t, "the log is let go once the transaction has ended", 30*time.Second, func() bool {
			writeOne(t, w)
			w.execute("CHECKPOINT") // logs what runs, by which the server moves on
			_, after = w.slotBytes()
			return after < 4<<20
		})
		caughtUp(t, w, r)
		r.stop()
		records, copies, committed := verifyAll(t, w, nil)
		t.Logf("PostgreSQL %s: with a transaction open, %d KiB behind and %d MiB kept; after it %d KiB kept; %d events, %d records, %d extra copies",
			version, lag>>10, kept>>20, after>>10, committed, records, copies)
	})
}

// slotBytes returns how far the slot is behind the end of the log, and how much
// log is kept for it.
func (w *environment) slotBytes() (lag, kept int64) {
	w.t.Helper()
	require.NoError(w.t, w.pool.QueryRow(w.t.Context(), `SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint
		FROM pg_replication_slots WHERE slot_name = $1`, w.slot()).Scan(&lag, &kept))
	return lag, kept
}

// foreignLog writes that many bytes of log that are no events, as inserts of a
// table that is not published.
func foreignLog(w *environment, bytes int) {
	w.t.Helper()
	w.execute(`CREATE TABLE IF NOT EXISTS noise (x text); ALTER TABLE noise ALTER x SET STORAGE EXTERNAL`)
	const chunk = 16 << 20
	for written := 0; written < bytes; written += chunk {
		w.execute(`INSERT INTO noise SELECT repeat('x', 1 << 20) FROM generate_series(1, $1::int)`, min(chunk, bytes-written)>>20)
		w.execute(`TRUNCATE noise`)
	}
}
