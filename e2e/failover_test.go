//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/pgserver"
)

// TestFailover: the server goes down, comes back as a standby, and is promoted: it
// is on another timeline then. With the slot, as a failover slot has it, the
// relay waits for the end of the recovery and goes on where it was. Without it, as
// before PostgreSQL 17, the relay makes none in silence.
func TestFailover(t *testing.T) {
	t.Parallel()
	onAVersion(t, func(t *testing.T, version string) {
		t.Run("SlotKept", func(t *testing.T) {
			w := ownEnvironment(t, version, nil)
			r := streaming(t, w, "checkpoint_interval: 50ms")
			watch := watchPositions(t, w)
			caughtUp(t, w, r)
			promoted(t, w, false)
			for range 20 {
				writeOne(t, w)
			}
			caughtUp(t, w, r)
			require.Contains(t, r.log(), "the server is on another timeline")
			require.Equal(t, 2, scalar[int](w, `SELECT timeline FROM onceward.relay_state`))
			r.stop()
			require.Empty(t, summary(watch.stop().found))
			records, copies, committed := verifyAll(t, w, nil)
			t.Logf("PostgreSQL %s: promoted; %d sessions, %d events, %d records, %d extra copies", version, sessions(r), committed, records, copies)
		})
		t.Run("SlotGone", func(t *testing.T) {
			w := ownEnvironment(t, version, nil)
			r := streaming(t, w, "checkpoint_interval: 50ms")
			caughtUp(t, w, r)
			promoted(t, w, true)
			lost := writeOne(t, w)
			caughtUp(t, w, r)
			// The checkpoint behind the new slot is written before the log says why there is one.
			eventually(t, "none is made in silence", 30*time.Second, func() bool { return r.logs("code=SLOT_MISSING") })
			eventually(t, "the gap is repaired", 30*time.Second, func() bool { return owed(w) == 0 })
			r.stop()
			verifyAll(t, w, nil)
			require.Equal(t, 1, w.published()[lost])
		})
		t.Run("SlotGoneAndLagging", func(t *testing.T) {
			if !full() && version == versions[0] {
				t.Skip("both in the long form")
			}
			w := ownEnvironment(t, version, nil)
			w.prepareTables()
			r := staying(w, "checkpoint_interval: 50ms")
			begins(t, w, r)
			caughtUp(t, w, r)
			eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
			saved := filepath.Join(t.TempDir(), "data")
			outboxctl(t, w.dsn(operatorLogin), "pause", "--relay", w.name)
			eventually(t, "the relay rests", 30*time.Second, func() bool { return readyz(t, r).State == "paused" })
			kept := writeOne(t, w) // not published in what the standby has
			replaceData(t, w, func(data string) { copied(t, data, saved) })
			outboxctl(t, w.dsn(operatorLogin), "resume", "--relay", w.name)
			ghost := writeOne(t, w)
			caughtUp(t, w, r)
			eventually(t, "it is published", 30*time.Second, func() bool { return w.published()[ghost] > 0 })
			eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
			require.NoError(t, w.server.Halt(t.Context(), pgserver.Immediate))
			require.NoError(t, os.RemoveAll(w.server.DataDir()))
			copied(t, saved, w.server.DataDir())
			asStandbyAgain(t, w, true)
			halted(t, r, "WENT_BACK") // and not SLOT_MISSING: the process has seen a tick that the standby lacks
			require.Equal(t, "WENT_BACK open 1", scalar[string](w, `SELECT string_agg(concat_ws(' ', cause, state, events), ', ') FROM onceward.gaps WHERE cause <> 'FIRST_START'`))
			gap := scalar[string](w, `SELECT gap_id::text FROM onceward.gaps WHERE state = 'open'`)
			outboxctl(t, w.dsn(operatorLogin), "gap", "repair", gap, "--reason", "a failover", "--yes")
			outboxctl(t, w.dsn(operatorLogin), "resume", "--relay", w.name)
			caughtUp(t, w, r)
			require.NotContains(t, account(t, w), ghost)
			eventually(t, "the gap is repaired", 30*time.Second, func() bool { return owed(w) == 0 })
			require.Positive(t, w.published()[kept])
			r.stop()
		})
	})
}

// TestFailoverLosesAGap: a session in exactly-once mode that begins anew writes the gap down
// in the database, and then the position behind it in Kafka. A standby that is promoted
// lacks the first: what is in the gap is published nevertheless.
func TestFailoverLosesAGap(t *testing.T) {
	t.Parallel()
	onAVersion(t, func(t *testing.T, version string) {
		w := ownEnvironment(t, version, nil)
		w.prepareTables()
		r := w.newRelay(w.config(`admin: {listen: "127.0.0.1:0"}`, "checkpoint_interval: 50ms"), "none").inMode("exactly-once")
		begins(t, w, r)
		writeOne(t, w)
		caughtUp(t, w, r)
		r.stop()
		w.execute(`CREATE TABLE was AS SELECT * FROM onceward.relay_state; CREATE TABLE saw AS SELECT * FROM onceward.published_snapshots`)
		passed := writeOne(t, w)
		loseSlot(t, w)
		plain := r.env
		r.env = append(slices.Clone(plain), "CRASH_AT=before-mode")
		r.start()
		require.Contains(t, r.wait(30*time.Second), "SLOT_MISSING")
		w.execute(`DELETE FROM onceward.gaps WHERE cause = 'SLOT_MISSING';
			UPDATE onceward.published_snapshots p SET snapshot = s.snapshot, taken_at = s.taken_at, attachings = s.attachings FROM saw s WHERE s.slot = p.slot;
			UPDATE onceward.relay_state r SET confirmed_lsn = w.confirmed_lsn, checkpoint = w.checkpoint, timeline = w.timeline, tick = w.tick, mode = w.mode,
				dead_letters = w.dead_letters, publication_catalog = w.publication_catalog FROM was w WHERE w.slot = r.slot`)
		promoted(t, w, false)
		r.env = plain
		begins(t, w, r)
		eventually(t, "the gap is repaired", 30*time.Second, func() bool { return owed(w) == 0 })
		require.Contains(t, scalar[string](w, `SELECT string_agg(cause || ' ' || detail, ', ') FROM onceward.gaps`), "SLOT_ADVANCED the checkpoint ")
		r.stop()
		require.Positive(t, w.published()[passed])
		requireTrue(t, w)
	})
}

// promoted restarts the server as a standby, without its slots if they are to be
// lost, and promotes it.
func promoted(t *testing.T, w *environment, slotsLost bool) {
	t.Helper()
	require.NoError(t, w.server.Halt(t.Context(), pgserver.Fast))
	asStandbyAgain(t, w, slotsLost)
}

// asStandbyAgain starts the server, which is down, as a standby, and promotes it.
func asStandbyAgain(t *testing.T, w *environment, slotsLost bool) {
	t.Helper()
	ctx, data := t.Context(), w.server.DataDir()
	require.NoError(t, os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o644))
	if slotsLost {
		slots, err := filepath.Glob(filepath.Join(data, "pg_replslot", "*"))
		require.NoError(t, err)
		require.Len(t, slots, 1)
		require.NoError(t, os.RemoveAll(slots[0]))
	}
	require.NoError(t, w.server.Resume(ctx))
	w.pool.Reset()
	w.app.Reset()
	require.True(t, scalar[bool](w, `SELECT pg_is_in_recovery()`))
	require.True(t, scalar[bool](w, `SELECT pg_promote()`))
}
