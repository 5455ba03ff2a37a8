//go:build e2e

package e2e

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// onFailoverVersions runs a scenario on the PostgreSQL that has failover slots: the oldest
// and the newest in the long form, the newest in the short form.
func onFailoverVersions(t *testing.T, scenario func(t *testing.T, w *environment)) {
	for _, version := range []string{"17", "18"} {
		t.Run("PostgreSQL"+version, func(t *testing.T) {
			if version == "17" && !full() {
				t.Skip("both in the long form")
			}
			scenario(t, ownEnvironment(t, version, nil))
		})
	}
}

// standbyGoesAway has the server wait for a standby that nothing reads for.
func standbyGoesAway(w *environment) {
	w.execute(`ALTER SYSTEM SET synchronized_standby_slots = 'away'`)
	w.execute(`SELECT pg_reload_conf()`)
}

// standbyIsGivenUp runs what is printed for it.
func standbyIsGivenUp(t *testing.T, w *environment, out string) {
	t.Helper()
	printed := regexp.MustCompile(`ALTER SYSTEM SET synchronized_standby_slots = '[^']*';`).FindString(out)
	require.NotEmpty(t, printed, out)
	w.execute(printed)
	w.execute(`SELECT pg_reload_conf()`)
}

// TestAwaitedStandbyIsAway: the slot gives nothing that a standby of
// synchronized_standby_slots lacks. It is away, and then its slot is dropped: the relay
// streams, and gets nothing. /readyz, the metric, status, relay check and the log say why,
// also to a role without pg_monitor, and the statements that they print let it go on.
func TestAwaitedStandbyIsAway(t *testing.T) {
	t.Parallel()
	onFailoverVersions(t, func(t *testing.T, w *environment) {
		r := streaming(t, w)
		caughtUp(t, w, r)
		w.execute(`SELECT pg_create_physical_replication_slot('away', true)`)
		standbyGoesAway(w)
		began := time.Now().Add(-time.Second)
		var wait *healthWait
		var first string
		for wait == nil {
			first = writeOne(t, w) // may come before the walsender has read its settings again
			eventually(t, "/readyz says what it waits for", time.Minute, func() bool {
				wait = waitsFor(t, r, "slot")
				return wait != nil || w.published()[first] == 1
			})
		}
		require.Equal(t, w.slot(), wait.What)
		require.Contains(t, wait.Detail, "synchronized_standby_slots")
		require.Contains(t, wait.Detail, "away (no standby reads from it)")
		require.WithinRange(t, wait.Since, began, time.Now().Add(-4*time.Second), "it has lasted, and began when it was seen first")
		key := writeOne(t, w)
		h := readyz(t, r)
		require.Equal(t, []any{"streaming", 200}, []any{h.State, h.Status})
		_, metrics := readPage(t, adminURL(t, r)+"/metrics")
		require.Contains(t, metrics, `onceward_waiting{for="slot",relay="`+w.name+`"} 1`)
		eventually(t, "the log warns", 30*time.Second, func() bool { return r.logs("nothing can be read from the replication slot yet") })
		code, out := checked(t, r)
		require.Zero(t, code, out)
		require.Regexp(t, `warning +standbys of the slot +STANDBY_AWAY: .*away \(no standby reads from it\)`, out)

		w.execute(`SELECT pg_drop_replication_slot('away')`)
		eventually(t, "it says that the slot is gone", 30*time.Second, func() bool {
			wait := waitsFor(t, r, "slot")
			return wait != nil && strings.Contains(wait.Detail, "away (there is no physical slot of that name)")
		})
		code, out = statusOf(t, w)
		require.Equal(t, 3, code, out)
		require.Contains(t, out, "waits for slot "+w.slot())
		require.Zero(t, w.published()[key])

		wait = waitsFor(t, r, "slot")
		made := regexp.MustCompile(`SELECT pg_catalog\.pg_create_physical_replication_slot\([^)]*\);`).FindString(wait.Detail)
		require.NotEmpty(t, made, wait.Detail)
		w.execute(`CHECKPOINT`) // log that a slot reserves begins here, behind what the standby lacks
		w.execute(made)
		eventually(t, "it says that the slot is there", 30*time.Second, func() bool {
			wait := waitsFor(t, r, "slot")
			return wait != nil && strings.Contains(wait.Detail, "away (no standby reads from it)")
		})
		require.Zero(t, w.published()[first]+w.published()[key], "no standby reads from it")
		standbyIsGivenUp(t, w, out)
		eventually(t, "it is published", 30*time.Second, func() bool { return w.published()[key] == 1 })
		eventually(t, "nothing waits", 30*time.Second, func() bool { return waitsFor(t, r, "slot") == nil })

		w.execute(`REVOKE pg_monitor FROM onceward_relay`)
		standbyGoesAway(w)
		writeOne(t, w)
		eventually(t, "/readyz says it without pg_monitor", time.Minute, func() bool {
			key = writeOne(t, w)
			return waitsFor(t, r, "slot") != nil
		})
		standbyIsGivenUp(t, w, waitsFor(t, r, "slot").Detail)
		eventually(t, "it is published", 30*time.Second, func() bool { return w.published()[key] == 1 })
		eventually(t, "nothing waits", 30*time.Second, func() bool { return waitsFor(t, r, "slot") == nil })
		require.Equal(t, 1, sessions(r))
		r.stop()
		verifyAll(t, w, nil)
		w.execute(`SELECT pg_drop_replication_slot('away')`)
	})
}

// TestAwaitedStandbyHoldsASlotThatIsLed: before PostgreSQL 18 a slot is led past a time
// without its publication, and PostgreSQL waits for standbys in that, too. Nothing streams
// meanwhile, and what it waits for is said all the same.
func TestAwaitedStandbyHoldsASlotThatIsLed(t *testing.T) {
	t.Parallel()
	w := ownEnvironment(t, "17", nil)
	r := streaming(t, w, "checkpoint_interval: 100ms")
	caughtUp(t, w, r)
	w.execute("DROP PUBLICATION " + w.slot())
	writeOne(t, w)
	log := r.wait(30 * time.Second)
	require.Contains(t, log, "PUBLICATION_")
	mend(t, w, log)
	w.execute(`SELECT pg_create_physical_replication_slot('away', true)`)
	standbyGoesAway(w)
	r.start()
	says := `msg="waiting: nothing can be read from the replication slot yet".* is led past log .*away \(no standby reads from it\)`
	eventually(t, "it names the standby", time.Minute, func() bool { return regexp.MustCompile(says).MatchString(r.log()) })
	standbyIsGivenUp(t, w, r.log())
	caughtUp(t, w, r)
	w.execute(`SELECT pg_drop_replication_slot('away')`)
	r.stop()
	states, _ := requireTrue(t, w)
	require.Equal(t, map[string]int{"published": scalar[int](w, `SELECT count(*) FROM onceward.outbox`)}, states)
}

// TestSlotWithoutFailover: what relay check prints for a slot that the relay may not make
// makes one that is synchronised to standbys. One that was made without is named by it, and
// altered by the relay before it streams.
func TestSlotWithoutFailover(t *testing.T) {
	t.Parallel()
	onFailoverVersions(t, func(t *testing.T, w *environment) {
		w.prepareTables()
		r := w.newRelay(w.config(`admin: {listen: "127.0.0.1:0"}`), "")
		may := r.env
		r.env = append(slices.Clone(may), "ONCEWARD_POSTGRES_SLOT_CREATE=never")
		code, out := checked(t, r)
		require.Equal(t, 3, code, out)
		printed := regexp.MustCompile(`SELECT pg_catalog\.pg_create_logical_replication_slot\([^)]*\);`).FindString(out)
		require.NotEmpty(t, printed, out)
		failover := func() bool {
			return scalar[bool](w, `SELECT failover FROM pg_replication_slots WHERE slot_name = $1`, w.slot())
		}
		w.execute(printed)
		require.True(t, failover(), printed)
		code, out = checked(t, r)
		require.Zero(t, code, out)
		require.Regexp(t, `ok +standbys of the slot`, out)

		w.execute(`SELECT pg_drop_replication_slot($1)`, w.slot())
		w.execute(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, w.slot())
		code, out = checked(t, r)
		require.Zero(t, code, out)
		require.Regexp(t, `warning +standbys of the slot +SLOT_WITHOUT_FAILOVER: `, out)
		r.env = append(slices.Clone(may), "ONCEWARD_POSTGRES_SLOT_FAILOVER=false")
		begins(t, w, r)
		r.stop()
		require.False(t, failover(), "as it is configured")
		r.env = may
		begins(t, w, r)
		require.True(t, failover())
		require.Contains(t, r.log(), "the slot was made without failover")
		code, out = checked(t, r)
		require.Zero(t, code, out)
		require.Regexp(t, `ok +standbys of the slot`, out)
		r.stop()
		verifyAll(t, w, nil)
	})
}
