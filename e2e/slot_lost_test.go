//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSlotLost: Kafka stands still for so long that the server needs more log for
// the slot than it may keep. The relay warns before the slot is lost; then it makes
// the slot anew, and publishes from the table what was in the log that is gone.
func TestSlotLost(t *testing.T) {
	onAVersion(t, func(t *testing.T, version string) {
		w := ownEnvironment(t, version, map[string]string{"max_slot_wal_keep_size": "32MB"})
		r := streaming(t, w, "checkpoint_interval: 100ms")
		caughtUp(t, w, r)
		resume := stall(t)
		defer resume()
		lost := writeOne(t, w)
		status := func() string {
			return scalar[string](w, `SELECT wal_status FROM pg_replication_slots`)
		}
		for i := 0; status() != "unreserved"; i++ {
			require.Less(t, i, 20, "it is %s", status())
			foreignLog(w, 16<<20)
		}
		eventually(t, "the relay warns", 30*time.Second, func() bool { return r.logs("the slot is about to be lost") })
		require.Equal(t, "unreserved", status(), "it warns before, not after")
		for i := 0; status() != "lost"; i++ {
			require.Less(t, i, 20, "it is %s", status())
			foreignLog(w, 16<<20)
			w.execute("CHECKPOINT")
		}
		eventually(t, "the relay names it", time.Minute, func() bool { return r.logs("code=SLOT_LOST") })
		resume()
		caughtUp(t, w, r)
		eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
		r.stop()
		states, copies := requireTrue(t, w)
		require.Equal(t, map[string]int{"published": scalar[int](w, `SELECT count(*) FROM onceward.outbox`)}, states)
		require.Positive(t, w.published()[lost])
		t.Logf("PostgreSQL %s: warned, then repaired; %d copies", version, copies)
	})
}

// TestIdleSlotInvalidated: PostgreSQL 18 can be told to invalidate a slot that
// nobody has used for a while. A relay that was away for longer says so.
func TestIdleSlotInvalidated(t *testing.T) {
	w := ownEnvironment(t, "18", map[string]string{"idle_replication_slot_timeout": "1s"})
	r := streaming(t, w)
	caughtUp(t, w, r)
	r.stop()
	eventually(t, "the server invalidates the slot", time.Minute, func() bool {
		w.execute("CHECKPOINT")
		return scalar[string](w, `SELECT coalesce(invalidation_reason, '') FROM pg_replication_slots`) == "idle_timeout"
	})
	lost := writeOne(t, w)
	r.start()
	caughtUp(t, w, r)
	eventually(t, "it says so", 30*time.Second, func() bool { return r.logs("code=SLOT_LOST") })
	eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
	r.stop()
	_, copies := requireTrue(t, w)
	require.Zero(t, copies, "the relay had stopped with a last snapshot")
	require.Equal(t, 1, w.published()[lost])
}
