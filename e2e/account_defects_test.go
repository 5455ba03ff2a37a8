//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAccountCatchesDefects: the statement that TestAccount is about fails for a relay
// that calls published what nobody has proved so. The short form has every defect once.
func TestAccountCatchesDefects(t *testing.T) {
	for _, tc := range []struct {
		name, defect, mode string
		seed               uint64
		move               func(a *accounting)
	}{
		{"forget-gap", "forget-gap", "idempotent", 0, (*accounting).slotPassesRows},
		{"gap-from-now", "gap-from-now", "idempotent", 1, (*accounting).slotPassesRows},
		{"forget-before", "forget-before", "idempotent", 4, func(*accounting) {}}, // outbox.start: now
		{"forget-waiting", "forget-waiting", "idempotent", 1, (*accounting).rowsWait},
		{"forget-gap, snapshot restored", "forget-gap", "exactly-once", 0, (*accounting).snapshotRestored},
		{"no-history, snapshot restored", "no-history", "exactly-once", 1, (*accounting).snapshotRestored},
		{"forget-gap, standby promoted", "forget-gap", "idempotent", 0, (*accounting).promotedWithoutSlot},
		{"no-history, standby promoted", "no-history", "exactly-once", 1, (*accounting).promotedWithSlot},
	} {
		if !full() && tc.defect == "forget-gap" && tc.name != tc.defect || !full() && tc.name == "no-history, standby promoted" {
			continue
		}
		t.Run(tc.name, func(t *testing.T) {
			a := newAccounting(t, tc.mode, tc.seed, tc.defect)
			defer a.begin()()
			tc.move(a)
			a.settle()
			a.dropStandby()
			found := summary(a.found)
			require.Contains(t, found, accountTrue)
			if tc.name == "no-history, snapshot restored" { // whether the new log passes over rows is a matter of bytes
				require.Regexp(t, "no relay has written down a gap since|is published, and is in no topic", found)
				return
			}
			require.Contains(t, found, "is published, and is in no topic")
		})
	}
}

// written waits until so many rows more are committed.
func (a *accounting) written(more int) {
	a.t.Helper()
	before := scalar[int64](a.environment, `SELECT max(seq) FROM onceward.outbox`)
	eventually(a.t, "events are written", 30*time.Second, func() bool {
		return scalar[int64](a.environment, `SELECT max(seq) FROM onceward.outbox`) > before+int64(more)
	})
}

// slotPassesRows leads the slot past rows that no relay has read.
func (a *accounting) slotPassesRows() {
	s := step{lasting: 10 * time.Second} // the relays come back when it settles
	a.nemesis.killRelays(s)
	a.written(20)
	require.True(a.t, a.advanceSlot(s))
}

func (a *accounting) rowsWait() {
	eventually(a.t, "events wait", 30*time.Second, func() bool { return scalar[int](a.environment, `SELECT count(*) FROM onceward.waiting`) > 0 })
	a.quiet++ // their topics are made at the next quiet moment
}

// snapshotRestored puts the storage back under relays that have gone on since, so that
// the new log is not at once as long as the old one was.
func (a *accounting) snapshotRestored() {
	require.True(a.t, a.saveStorage(step{}))
	a.written(100)
	eventually(a.t, "what is in the snapshot has ended", 30*time.Second, func() bool { return a.restoreStorage(step{}) })
	a.goOn()
}

// promotedWithoutSlot promotes a standby of a release that has no slots there.
func (a *accounting) promotedWithoutSlot() {
	require.True(a.t, a.makeStandby(step{}))
	a.written(20)
	require.True(a.t, a.promoteStandby(step{}))
	a.goOn()
}

// promotedWithSlot promotes a standby that has the slot and lacks the last rows.
func (a *accounting) promotedWithSlot() {
	require.True(a.t, a.makeStandby(step{}))
	began := time.Now()
	eventually(a.t, "the standby has the slot", time.Minute, func() bool { return a.synced(a.slot()) })
	a.t.Logf("the standby has the slot after %s", time.Since(began).Round(time.Millisecond))
	require.True(a.t, a.promoteStandby(step{lasting: 2 * time.Second, shape: 1}))
	a.goOn()
}

// synced says whether the standby has a slot for good. It has once the slot's restart_lsn
// and catalog_xmin have passed what the standby kept when it began: they move when the
// relay confirms a record of running transactions, of which PostgreSQL writes one in 15
// seconds, and the standby looks ever more seldom, down to once in 30. Two such records and
// one look are the whole minute; so the records are asked for, and a reload wakes who looks.
func (a *accounting) synced(slot string) bool {
	a.execute(`SELECT pg_log_standby_snapshot()`)
	return a.onStandby(`SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1 AND synced AND NOT temporary) AND pg_reload_conf()`, slot) ||
		a.onStandby(`SELECT NOT pg_reload_conf()`)
}

// goOn lets a new history of the database get further than the one that is over.
func (a *accounting) goOn() {
	a.written(20)
	a.execute(`SELECT pg_switch_wal()`)
	a.written(20)
}
