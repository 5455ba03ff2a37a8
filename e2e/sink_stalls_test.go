//go:build e2e

package e2e

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSinkStalls: Kafka answers nothing for longer than wal_sender_timeout while
// more is written than the relay may hold. The relay reads no further and keeps
// its session: same walsender, bounded memory. Then everything arrives.
func TestSinkStalls(t *testing.T) {
	onAVersion(t, func(t *testing.T, version string) {
		w := ownEnvironment(t, version, map[string]string{"wal_sender_timeout": "3s"})
		r := streaming(t, w)
		watch := watchPositions(t, w)
		caughtUp(t, w, r) // the topic is known
		walsender := scalar[int](w, `SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1`, w.slot())

		began := time.Now()
		resume := stall(t)
		require.NoError(t, bulk(t.Context(), w, 0, 80_000, 1000)) // five times what the relay may hold
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		written := make(chan error, 1)
		go func() { written <- trickle(ctx, w) }()
		var most float64
		var queued float64 // what is written takes longer to be read than that on a busy machine
		eventually(t, "twice the server's patience passes, and the queue fills", 30*time.Second, func() bool {
			most = max(most, memory(t, r, "VmRSS"))
			queued, _ = metric(t, r, "onceward_queue_bytes")
			return time.Since(began) > 7*time.Second && queued > 12<<20
		})
		require.Greater(t, queued, float64(12<<20), "the queue is full: the relay reads no further")
		inFlight, _ := metric(t, r, "onceward_events_in_flight")
		require.Less(t, inFlight, 60_000.0, "and holds a part of the transaction only")
		require.Equal(t, walsender, scalar[int](w, `SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1`, w.slot()), "the same walsender while Kafka is stopped")
		stalled := time.Since(began)
		resume()
		stop()
		require.NoError(t, <-written)

		caughtUp(t, w, r)
		require.Equal(t, walsender, scalar[int](w, `SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1`, w.slot()), "the same walsender after it")
		require.Equal(t, 1, sessions(r), "no new session")
		require.NotContains(t, r.log(), "session ended")
		peak := memory(t, r, "VmHWM")
		r.stop()
		records, copies, committed := verifyAll(t, w, nil)
		require.Empty(t, summary(watch.stop().found))
		t.Logf("PostgreSQL %s: stopped for %s, %d events committed, %d records, %d extra copies, 1 session; resident %.0f MiB at most while stopped, %.0f MiB in all",
			version, stalled.Round(time.Second), committed, records, copies, most, peak)
		require.Zero(t, copies)
		require.LessOrEqual(t, peak, float64(memoryBar))
	})
}

// trickle commits an event every few milliseconds until ctx ends.
func trickle(ctx context.Context, w *environment) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if err := one(context.WithoutCancel(ctx), w); err != nil {
			return err
		}
	}
}

// stall stops the broker; the function returned lets it go on and is safe to
// call twice.
func stall(t *testing.T) (resume func()) {
	t.Helper()
	broker := kafka(t).PID(0)
	require.NoError(t, syscall.Kill(broker, syscall.SIGSTOP))
	resumed := false
	resume = func() {
		if !resumed {
			resumed = true
			require.NoError(t, syscall.Kill(broker, syscall.SIGCONT))
		}
	}
	t.Cleanup(resume)
	return resume
}
