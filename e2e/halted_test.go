//go:build e2e

package e2e

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/pgserver"
)

// staying makes a relay that stays when it is halted. It is not started.
func staying(w *environment, config ...string) *relayProcess {
	r := w.newRelay(w.config(append([]string{`admin: {listen: "127.0.0.1:0"}`}, config...)...), "")
	r.env = slices.DeleteFunc(r.env, func(s string) bool { return s == exitOnHalt })
	return r
}

// halted waits until the relay says that it is halted by a code.
func halted(t *testing.T, r *relayProcess, code string) health {
	t.Helper()
	var h health
	eventually(t, "halted by "+code, 30*time.Second, func() bool {
		h = readyz(t, r)
		return h.State == "halted" && h.Code == code
	})
	require.Equal(t, 503, h.Status)
	status, _ := readPage(t, adminURL(t, r)+"/healthz")
	require.Equal(t, 200, status, "a restart would mend nothing")
	return h
}

// TestHaltedGoesOnByItself: what only an operator can mend halts the relay. It
// gives the slot back, stays, says what is wrong, and goes on once it is mended,
// without a restart.
func TestHaltedGoesOnByItself(t *testing.T) {
	t.Parallel()
	onAVersion(t, func(t *testing.T, version string) {
		w := newEnvironment(t, version)
		r := staying(w)
		r.start()
		halted(t, r, "TABLE_MISSING")
		prepared(w) // outboxctl migrate up
		eventually(t, "the relay begins when its tables are there", time.Minute, func() bool { return sessions(r) == 1 })
		caughtUp(t, w, r)
		require.Empty(t, readyz(t, r).Error)

		before := scalar[int64](w, `SELECT epoch FROM onceward.relay_state`)
		said := strings.Count(r.log(), "code=RIGHTS") // where it looked before all of its rights were there
		w.execute(`REVOKE SELECT ON onceward.outbox FROM onceward_relay`)
		w.execute(`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1`, w.slot())
		h := halted(t, r, "RIGHTS")
		require.Contains(t, h.Error, "GRANT SELECT ON onceward.outbox")
		require.Equal(t, "halted", h.Waiting[0].For)
		require.False(t, scalar[bool](w, `SELECT active FROM pg_replication_slots WHERE slot_name = $1`, w.slot()), "it has given the slot back")
		var out string
		eventually(t, "status says it", 15*time.Second, func() bool {
			var code int
			code, out = statusOf(t, w)
			return code == 3 && strings.Contains(out, "is halted since")
		})
		require.Contains(t, out, "GRANT SELECT ON onceward.outbox")
		require.NotContains(t, out, "start the relay")
		key := writeOne(t, w)
		// It looks by itself, and writes nothing while it does.
		looks := func() string {
			return scalar[string](w, `SELECT coalesce(max(backend_start)::text, '') FROM pg_stat_activity WHERE application_name = 'onceward relay ' || $1`, w.slot())
		}
		seen := map[string]bool{}
		eventually(t, "it looks again and again", time.Minute, func() bool { seen[looks()] = true; return len(seen) > 3 })
		require.Equal(t, before, scalar[int64](w, `SELECT epoch FROM onceward.relay_state`))
		require.Equal(t, said+1, strings.Count(r.log(), "code=RIGHTS"), "it says so once")
		w.execute(`GRANT SELECT ON onceward.outbox TO onceward_relay`)
		eventually(t, "it goes on by itself", 30*time.Second, func() bool { return sessions(r) == 2 })
		caughtUp(t, w, r)
		require.Contains(t, keysIn(w), key)
		eventually(t, "status is well", 15*time.Second, func() bool { code, _ := statusOf(t, w); return code == 0 })
		r.stop()
		verifyAll(t, w, nil)
	})
}

// keysIn returns the keys of the topic's records.
func keysIn(w *environment) (keys []string) {
	for _, m := range w.records() {
		for _, h := range m.Headers {
			if string(h.Key) == "idempotency-key" {
				keys = append(keys, string(h.Value))
			}
		}
	}
	return keys
}

// TestHaltedBesideAnOwner: a process with a wrong file is halted, and neither the
// owner's session nor its word about itself suffers. With --exit-on-halt it ends.
func TestHaltedBesideAnOwner(t *testing.T) {
	w := newEnvironment(t, versions[1])
	owner := streaming(t, w)
	caughtUp(t, w, owner)
	wrong := staying(w)
	wrong.env = append(wrong.env, "ONCEWARD_POSTGRES_PUBLICATION=onceward_other")
	wrong.start()
	halted(t, wrong, "PUBLICATION_MISSING")
	states := func() string {
		return scalar[string](w, `SELECT coalesce(string_agg(state || ' ' || code, ', ' ORDER BY state), '') FROM onceward.relay_health`)
	}
	eventually(t, "each has its row", 15*time.Second, func() bool { return states() == "halted PUBLICATION_MISSING, streaming " })
	code, out := statusOf(t, w)
	require.Equal(t, 3, code)
	require.Contains(t, out, "is halted since")
	caughtUp(t, w, owner)
	require.Equal(t, 1, sessions(owner))
	require.EqualValues(t, 1, scalar[int64](w, `SELECT epoch FROM onceward.relay_state`))
	wrong.stop()
	eventually(t, "it takes its row along", 15*time.Second, func() bool { return states() == "streaming " })

	wrong.env = append(wrong.env, exitOnHalt)
	wrong.start()
	require.Contains(t, wrong.wait(30*time.Second), "PUBLICATION_MISSING")
	require.ErrorContains(t, wrong.process.Err(), "exit status 1")
	wrong.process = nil
	require.Equal(t, "streaming ", states(), "a process that never wrote leaves no row")
	owner.kill()
	eventually(t, "status names the dead", 15*time.Second, func() bool {
		code, out = statusOf(t, w)
		return code == 3 && strings.Contains(out, "/readyz (the last one, ")
	})
	require.Contains(t, out, "it was streaming")
	next := startRelay(t, w)
	eventually(t, "the next owner removes the dead", 15*time.Second, func() bool {
		return scalar[int](w, `SELECT count(*) FROM onceward.relay_health`) == 1 && states() == "streaming "
	})
	next.stop()
}

// TestQuietStandby: a standby looks by one connection whether the slot is free.
// The server's log has no line of it, and it takes over as fast as one that
// tries: when the holder is killed, and after the server was started again.
func TestQuietStandby(t *testing.T) {
	t.Parallel()
	w := ownEnvironment(t, versions[1], map[string]string{"wal_sender_timeout": "5s"})
	holder := streaming(t, w)
	caughtUp(t, w, holder)
	standby := staying(w)
	standby.start()
	eventually(t, "it stands by", 30*time.Second, func() bool { return readyz(t, standby).State == "standby" })
	looks := func() string {
		return scalar[string](w, `SELECT coalesce(max(query_start)::text, '') FROM pg_stat_activity WHERE application_name LIKE 'onceward process %' AND query ~ 'Slot(Active|Stranger)'`)
	}
	for range 5 {
		last := looks()
		eventually(t, "it looks", 10*time.Second, func() bool { return looks() != last })
	}
	require.Equal(t, 1, scalar[int](w, `SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender'`))
	eventually(t, "status shows both", 15*time.Second, func() bool {
		return scalar[string](w, `SELECT string_agg(state, ' ' ORDER BY state) FROM onceward.relay_health`) == "standby streaming"
	})
	code, out := statusOf(t, w)
	require.Zero(t, code, "a standby is how it should be: %s", out)
	refused := func() int {
		text, err := os.ReadFile(w.server.LogFile())
		require.NoError(t, err)
		return strings.Count(string(text), "is active for PID")
	}
	require.Zero(t, refused())

	began := time.Now()
	holder.kill()
	eventually(t, "the standby takes over", 10*time.Second, func() bool { return sessions(standby) == 1 })
	took := time.Since(began)
	require.Less(t, took, 5*time.Second)
	eventually(t, "it removes the dead", 15*time.Second, func() bool {
		return scalar[string](w, `SELECT string_agg(state, ' ' ORDER BY state) FROM onceward.relay_health`) == "streaming"
	})

	holder, standby = standby, staying(w)
	standby.start()
	eventually(t, "a new one stands by", 30*time.Second, func() bool { return readyz(t, standby).State == "standby" })
	require.NoError(t, w.server.Restart(t.Context(), pgserver.Fast))
	w.pool.Reset()
	w.app.Reset()
	eventually(t, "one streams and one stands by", time.Minute, func() bool {
		states := []string{readyz(t, holder).State, readyz(t, standby).State}
		slices.Sort(states)
		return slices.Equal(states, []string{"standby", "streaming"})
	})
	if readyz(t, holder).State == "standby" {
		holder, standby = standby, holder
	}
	caughtUp(t, w, holder)
	require.NoError(t, holder.process.Signal(syscall.SIGSTOP))
	before := sessions(standby)
	eventually(t, "it takes over from one that stands still", 20*time.Second, func() bool { return sessions(standby) > before })
	require.NoError(t, holder.process.Signal(syscall.SIGCONT))
	eventually(t, "which stands by then", 30*time.Second, func() bool { return readyz(t, holder).State == "standby" })
	caughtUp(t, w, standby)
	holder.stop()
	standby.stop()
	verifyAll(t, w, nil)
	t.Logf("taken over %s after kill -9, no line in the server's log", took.Round(time.Millisecond))
}
