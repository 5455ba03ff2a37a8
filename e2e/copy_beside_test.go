//go:build e2e

package e2e

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/pgserver"
)

// TestACopyBesideTheOriginal: a copy of the database, slot and all, has a relay that
// publishes to the same Kafka, by the same name. Its position is none of the
// original's: what the original committed below it is neither lost nor called published.
func TestACopyBesideTheOriginal(t *testing.T) {
	t.Parallel()
	onAVersion(t, func(t *testing.T, version string) {
		w := ownEnvironment(t, version, nil)
		original := w.server
		w.prepareTables()
		r := staying(w, "checkpoint_interval: 50ms")
		r.inMode("exactly-once")
		begins(t, w, r)
		r.stop()

		dir := standbyDir(t)
		t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
		require.NoError(t, original.Halt(t.Context(), pgserver.Fast))
		copied(t, original.Dir()+"/.", dir)
		require.NoError(t, original.Resume(t.Context()))
		w.moveTo(original)                                              // with new connections
		w.execute(`UPDATE onceward.relay_state SET tick = tick + 1000`) // as if it had written more checkpoints than the other will

		beside, err := pgserver.Start(t.Context(), pgserver.Options{Version: version, Dir: dir})
		require.NoError(t, err)
		stopAtTheEnd(t, beside)
		w.moveTo(beside)
		twin := staying(w, "checkpoint_interval: 50ms")
		twin.inMode("exactly-once")
		begins(t, w, twin)
		for range 3 {
			writeOne(t, w)
			caughtUp(t, w, twin)
		}
		twin.stop()
		beyond := scalar[string](w, `SELECT pg_current_wal_insert_lsn()::text`)

		w.moveTo(original)
		mine := writeOne(t, w)
		eventually(t, "the log is beyond the other's position", 30*time.Second, func() bool {
			w.execute(`SELECT pg_switch_wal()`)
			return scalar[bool](w, `SELECT pg_current_wal_insert_lsn() > $1::pg_lsn`, beyond)
		})
		again := again(r)
		h := halted(t, again, "WENT_BACK")
		require.Contains(t, h.Error, "another copy of it publishes to the same Kafka")
		require.Equal(t, "gap", account(t, w)[mine])
		gap := scalar[string](w, `SELECT gap_id::text FROM onceward.gaps WHERE state = 'open'`)
		outboxctl(t, w.dsn(operatorLogin), "gap", "repair", gap, "--reason", "the copy is gone", "--yes")
		caughtUp(t, w, again)
		eventually(t, "the gap is repaired", 30*time.Second, func() bool { return owed(w) == 0 })
		require.Equal(t, 1, w.published()[mine])
		again.stop()
		again.start()
		caughtUp(t, w, again)
		again.stop()
	})
}
