//go:build e2e

package e2e

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// toBeStopped runs a scenario in both modes, each with a relay that has not run yet.
func toBeStopped(t *testing.T, checkpoints string, scenario func(t *testing.T, w *environment, r *relayProcess, random *rand.Rand)) {
	t.Helper()
	seed := seedOf(t)
	for i, mode := range []string{"idempotent", "exactly-once"} {
		t.Run(mode, func(t *testing.T) {
			w := settled(t, versions[(seed+uint64(i))%2])
			r := w.newRelay(w.config("checkpoint_interval: "+checkpoints, "outbox: {start: all}", smallQueue, `admin: {listen: "off"}`), "").inMode(mode)
			scenario(t, w, r, rand.New(rand.NewPCG(seed, uint64(i))))
		})
	}
}

func begunAndStopped(t *testing.T, w *environment, r *relayProcess) {
	t.Helper()
	r.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
	caughtUp(t, w, r)
	r.stop()
}

func catchesUpAndStops(t *testing.T, w *environment, r *relayProcess) {
	t.Helper()
	r.start()
	caughtUp(t, w, r)
	eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
	r.stop()
}

// TestGracefulStopInARepair: stopped again and again in the middle of a repair, the
// relay ends with 0 and goes on with the event behind the last one: none is in the
// topic twice, in either mode.
func TestGracefulStopInARepair(t *testing.T) {
	t.Parallel()
	toBeStopped(t, "100ms", func(t *testing.T, w *environment, r *relayProcess, random *rand.Rand) {
		begunAndStopped(t, w, r)
		const events = 100_000
		require.NoError(t, bulk(t.Context(), w, 0, events, 200))
		w.execute(`SELECT pg_replication_slot_advance($1, pg_current_wal_insert_lsn())`, w.slot())
		inside := 0
		for range 12 {
			before := cursor(w)
			r.start()
			eventually(t, "it repairs", 30*time.Second, func() bool { return cursor(w) > before })
			require.NoError(t, wait(t.Context(), time.Duration(random.Int64N(int64(50*time.Millisecond)))))
			r.stop()
			if !repairing(w) {
				break
			}
			inside++
		}
		require.GreaterOrEqual(t, inside, 5, "stops in the middle")
		catchesUpAndStops(t, w, r)
		states, copies := requireTrue(t, w)
		require.Equal(t, events+2, states["published"])
		require.Zero(t, copies, "after %d stops in the middle", inside)
		t.Logf("%d events, %d graceful stops in the middle of their repair, 0 copies", events, inside)
	})
}

// cursor is how far the repairs of gaps have come; as much as can be once they are over.
func cursor(w *environment) int64 {
	w.t.Helper()
	return scalar[int64](w, `SELECT coalesce(max(cursor), 0) + count(*) FILTER (WHERE state = 'repaired') FROM onceward.gaps WHERE cause = 'SLOT_ADVANCED'`)
}

func repairing(w *environment) bool {
	w.t.Helper()
	return scalar[bool](w, `SELECT coalesce(bool_or(state = 'repairing'), false) FROM onceward.gaps WHERE cause = 'SLOT_ADVANCED'`)
}

// TestGracefulStopLeavesNoDoubt: whenever the relay is told to stop, everything that
// was committed by then and is in the topic is called published, also what a tick
// has just taken a snapshot of: a slot that is lost while it is down makes no copies.
func TestGracefulStopLeavesNoDoubt(t *testing.T) {
	t.Parallel()
	toBeStopped(t, "50ms", func(t *testing.T, w *environment, r *relayProcess, random *rand.Rand) {
		for n := range 12 {
			r.start()
			eventually(t, "the relay streams", 30*time.Second, func() bool { return sessions(r) > n })
			caughtUp(t, w, r)
			for range 1 + random.IntN(3) {
				writeOne(t, w)
				require.NoError(t, wait(t.Context(), time.Duration(random.Int64N(int64(60*time.Millisecond)))))
			}
			r.stop()
			requireTrue(t, w)
		}
	})
}

// TestGracefulStopInATransaction: stopped again and again in the middle of one huge
// transaction, wherever it has come inside of a batch, the relay goes on behind the
// last event that is out: none is in the topic twice, in either mode.
func TestGracefulStopInATransaction(t *testing.T) {
	t.Parallel()
	toBeStopped(t, "50ms", func(t *testing.T, w *environment, r *relayProcess, random *rand.Rand) {
		begunAndStopped(t, w, r)
		base, events, written, inside := w.ends(), 200_000, 0, 0
		for tries := 0; inside < 3 && tries < 10; tries++ {
			out := int(w.ends() - base)
			if out >= written {
				require.NoError(t, bulk(t.Context(), w, written, events, 10))
				written += events
			}
			r.start()
			eventually(t, "more is out", time.Minute, func() bool { return int(w.ends()-base) > out })
			require.NoError(t, wait(t.Context(), time.Duration(random.Int64N(int64(20*time.Millisecond)))))
			r.stop()
			if int(w.ends()-base) < written {
				inside++
			} else {
				events = min(2*events, 1_600_000) // what was read before the stop is published, and on a busy machine that was all
			}
		}
		catchesUpAndStops(t, w, r)
		_, copies := requireTrue(t, w)
		require.Zero(t, copies)
		require.Positive(t, inside, "stops in the middle of one")
		t.Logf("%d events in transactions of up to %d, %d graceful stops in the middle of one, 0 copies", written, events, inside)
	})
}
