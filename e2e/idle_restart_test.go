//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/pgserver"
)

// idleTraffic is what happens beside a relay for which there is nothing to publish.
type idleTraffic struct {
	name string
	of   func(w *environment)
}

var idleTraffics = []idleTraffic{
	{"little log of another table", func(w *environment) {
		w.execute(`CREATE TABLE IF NOT EXISTS other (n int); INSERT INTO other SELECT generate_series(1, 1000)`)
		w.execute(`SELECT pg_logical_emit_message(true, 'other', 'x'), pg_logical_emit_message(false, 'other', 'x')`)
	}},
	{"much log of another table", func(w *environment) { foreignLog(w, 4<<20) }},
	{"log of another database", func(w *environment) {
		for _, sql := range []string{
			"CREATE TABLE IF NOT EXISTS noise (x text)", "INSERT INTO noise SELECT repeat(md5(n::text), 30) FROM generate_series(1, 4000) n", "DROP TABLE noise",
		} {
			require.NoError(w.t, w.superuser(w.t.Context(), sql))
		}
	}},
	{"segments switched", func(w *environment) {
		for range 2 {
			w.execute(`SELECT pg_switch_wal()`)
			w.execute("CHECKPOINT")
		}
	}},
	{"upkeep", func(w *environment) {
		w.execute("VACUUM (FREEZE, ANALYZE)")
		w.execute("VACUUM (FULL) pg_publication")
		w.execute("CHECKPOINT")
	}},
	{"events rolled back", func(w *environment) {
		for range 20 {
			tx, err := w.app.Begin(w.t.Context())
			require.NoError(w.t, err)
			_, err = (&writers{namespace: w.name}).row(w.t.Context(), tx, 0, "a-0")
			require.NoError(w.t, err)
			require.NoError(w.t, tx.Rollback(w.t.Context()))
		}
	}},
	{"the server starts again", func(w *environment) { w.serverAgain(pgserver.Fast) }},
	{"the server crashes", func(w *environment) { w.serverAgain(pgserver.Immediate) }},
}

// serverAgain ends the environment's own server and starts it again.
func (w *environment) serverAgain(mode pgserver.Mode) {
	w.t.Helper()
	require.NoError(w.t, w.server.Restart(w.t.Context(), mode))
	w.pool.Reset()
	w.app.Reset()
	eventually(w.t, "the server answers", 30*time.Second, func() bool {
		return w.pool.Ping(w.t.Context()) == nil && w.app.Ping(w.t.Context()) == nil
	})
}

// TestIdleRestart: a relay that has had nothing to publish, whatever else the server
// did meanwhile and while it was away, goes on where it was, stopped or killed: no gap is written
// down, not even an empty one, and nothing is published twice. The short form ends
// it in one way after each traffic, and in the other mode, on the other version, in the other.
func TestIdleRestart(t *testing.T) {
	t.Parallel()
	for i, mode := range []string{"idempotent", "exactly-once"} {
		for k, version := range versions {
			if !full() && k != i {
				continue
			}
			t.Run(mode+"/PostgreSQL"+version, func(t *testing.T) {
				t.Parallel() // much of it is waiting
				idleRestarts(t, version, mode, 2*i+k)
			})
		}
	}
}

func idleRestarts(t *testing.T, version, mode string, turn int) {
	w := ownEnvironment(t, version, nil)
	w.prepareTables()
	r := w.newRelay(w.config("checkpoint_interval: 100ms", `admin: {listen: "off"}`), "").inMode(mode)
	r.start()
	idle := &idler{w: w, r: r}
	idle.streams(1)
	require.NoError(t, wait(t.Context(), followUp)) // beyond the checkpoint that follows by time
	idle.again(false, "nothing at all")
	idle.again(true, "nothing at all")
	for i, traffic := range idleTraffics {
		for _, hard := range []bool{(i+turn)%2 == 0, (i+turn)%2 != 0}[:ways()] {
			before := sessions(r)
			traffic.of(w)
			if strings.HasPrefix(traffic.name, "the server") {
				eventually(t, "the relay is back: "+traffic.name, time.Minute, func() bool { return sessions(r) > before })
			}
			require.NoError(t, wait(t.Context(), 300*time.Millisecond)) // a few rounds of it
			idle.away = traffic.of
			idle.again(hard, traffic.name)
			idle.away = nil
			idle.again(!hard, "idle from its start: "+traffic.name)
		}
	}
	idle.writes()
	r.stop()
	states, copies := requireTrue(t, w)
	require.Equal(t, map[string]int{"published": idle.written}, states)
	require.Zero(t, copies)
	t.Logf("PostgreSQL %s, %s: %d restarts, %d events; 0 gaps, 0 copies", version, mode, idle.restarts, idle.written)
}

// followUp is beyond the 30 s after which an idle checkpoint follows one with a cause.
const followUp = 33 * time.Second

// ways is in how many ways the relay is ended after each traffic.
func ways() int {
	if full() {
		return 2
	}
	return 1
}

// idler ends a relay and starts it again.
type idler struct {
	w    *environment
	r    *relayProcess
	away func(w *environment) // happens while it is away

	restarts, written int
}

// again ends the relay, hard or not, and starts it: it goes on, and has found nothing.
func (i *idler) again(hard bool, after string) {
	i.w.t.Helper()
	if hard {
		i.r.kill()
	} else {
		i.r.stop()
	}
	if i.away != nil {
		i.away(i.w)
	}
	before := sessions(i.r)
	i.r.start()
	i.streams(before + 1)
	i.restarts++
	found := scalar[string](i.w, `SELECT coalesce(string_agg(cause || ': ' || detail, '; '), '') FROM onceward.gaps WHERE cause <> 'FIRST_START'`)
	require.Empty(i.w.t, found, "killed: %t, after: %s", hard, after)
	if i.restarts%3 == 0 { // else it is idle from one start to the next
		i.writes()
	}
}

// streams waits until the relay has taken the slot so often, and a few rounds more.
func (i *idler) streams(times int) {
	i.w.t.Helper()
	eventually(i.w.t, "the relay streams", time.Minute, func() bool { return sessions(i.r) >= times })
	require.NoError(i.w.t, wait(i.w.t.Context(), 300*time.Millisecond))
}

// writes commits an event, and waits until it has ended.
func (i *idler) writes() {
	i.w.t.Helper()
	writeOne(i.w.t, i.w)
	i.written++
	eventually(i.w.t, "nothing is pending", time.Minute, func() bool { return owed(i.w) == 0 })
}

// TestIdleRestartCatchesDefects: an idle relay that tells the slot more than its
// checkpoint says has made a gap by its next start.
func TestIdleRestartCatchesDefects(t *testing.T) {
	t.Parallel()
	w := settled(t, versions[1])
	r := w.newRelay(w.config("checkpoint_interval: 100ms", `admin: {listen: "off"}`), "confirm-idle")
	r.start()
	i := &idler{w: w, r: r}
	i.streams(1)
	i.writes()
	idleTraffics[0].of(w) // too little for a checkpoint
	eventually(t, "the slot is ahead of the checkpoint", 30*time.Second, func() bool {
		return scalar[bool](w, `SELECT confirmed_flush_lsn > confirmed_lsn FROM pg_replication_slots p, onceward.relay_state s WHERE p.slot_name = s.slot AND s.slot = $1`, w.slot())
	})
	r.kill()
	r.start()
	eventually(t, "a gap", 30*time.Second, func() bool {
		return scalar[int](w, `SELECT count(*) FROM onceward.gaps WHERE cause = 'SLOT_ADVANCED'`) == 1
	})
	r.stop()
}
