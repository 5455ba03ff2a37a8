//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
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
	onVersions(t, func(t *testing.T, version string) {
		t.Run("SlotKept", func(t *testing.T) {
			w := ownWorld(t, version, nil)
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
			w := ownWorld(t, version, nil)
			r := streaming(t, w, "checkpoint_interval: 50ms")
			caughtUp(t, w, r)
			promoted(t, w, true)
			lost := writeOne(t, w)
			caughtUp(t, w, r)
			require.Contains(t, r.log(), "code=SLOT_MISSING", "none is made in silence")
			eventually(t, "the gap is repaired", 30*time.Second, func() bool { return owed(w) == 0 })
			r.stop()
			verifyAll(t, w, nil)
			require.Equal(t, 1, w.published()[lost])
		})
	})
}

// promoted restarts the server as a standby, without its slots if they are to be
// lost, and promotes it.
func promoted(t *testing.T, w *world, slotsLost bool) {
	t.Helper()
	ctx := t.Context()
	require.NoError(t, w.server.Halt(ctx, pgserver.Fast))
	data := w.server.DataDir()
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
