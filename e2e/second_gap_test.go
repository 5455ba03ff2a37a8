//go:build e2e

package e2e

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSecondGapInARepair: in exactly-once mode a gap that is found while another is
// being repaired publishes nothing of that one again: after a crash between the
// commit in Kafka and the cursor in the database, and again and again while the
// repair goes on.
func TestSecondGapInARepair(t *testing.T) {
	t.Parallel()
	onAVersion(t, func(t *testing.T, version string) {
		w := settled(t, version)
		r := w.newRelay(w.config("checkpoint_interval: 50ms", "outbox: {start: all}", `admin: {listen: "off"}`), "none").inMode("exactly-once")
		r.env = append(r.env, "ONCEWARD_KAFKA_TRANSACTION_INTERVAL=10ms")
		r.start()
		eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
		caughtUp(t, w, r)
		r.stop()
		const events = 20_000
		require.NoError(t, bulk(t.Context(), w, 0, events, 200))
		w.execute(`SELECT pg_replication_slot_advance($1, pg_current_wal_insert_lsn())`, w.slot())
		plain := slices.Clone(r.env)
		r.env = append(r.env, "CRASH_AT=before-cursor:3")
		r.start()
		r.wait(30 * time.Second)
		require.Positive(t, cursor(w))
		writeOne(t, w)
		eventually(t, "the slot is free", 10*time.Second, func() bool {
			return !scalar[bool](w, `SELECT bool_or(active) FROM pg_replication_slots WHERE slot_name = $1`, w.slot())
		})
		w.execute(`SELECT pg_drop_replication_slot($1)`, w.slot())
		r.env = plain
		r.start()
		toggles := 0
		for range 4 {
			before := cursor(w)
			eventually(t, "it repairs", 30*time.Second, func() bool { return cursor(w) > before || !repairing(w) })
			if !repairing(w) {
				break
			}
			gaps := scalar[int](w, `SELECT count(*) FROM onceward.gaps`)
			w.execute("ALTER PUBLICATION " + w.slot() + " SET (publish = 'insert')") // no change, and yet looked at
			eventually(t, "a gap is found", 30*time.Second, func() bool { return scalar[int](w, `SELECT count(*) FROM onceward.gaps`) > gaps })
			toggles++
		}
		caughtUp(t, w, r)
		eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
		r.stop()
		states, copies := requireTrue(t, w)
		require.Equal(t, scalar[int](w, `SELECT count(*) FROM onceward.outbox`), states["published"])
		require.Zero(t, copies)
		require.Positive(t, toggles)
		t.Logf("%d events, a crash and %d gaps found in their repair; 0 missing, 0 copies", events, 1+toggles)
	})
}
