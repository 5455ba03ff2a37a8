//go:build e2e

package e2e

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPauseByStop: a relay is stopped in its tracks for longer than
// wal_sender_timeout, with events in flight. A twin takes over. When the first
// wakes, it changes nothing that the twin has written, and stands by.
func TestPauseByStop(t *testing.T) {
	t.Parallel()
	onAVersion(t, func(t *testing.T, version string) {
		w := ownEnvironment(t, version, map[string]string{"wal_sender_timeout": "2s"})
		w.install()
		w.createTopic(nil)
		first := startRelay(t, w, "checkpoint_interval: 20ms")
		watch := watchPositions(t, w)
		load := &writers{pool: w.app, seed: 8, count: 4, aggregates: 40, target: 30_000, namespace: w.name}
		written := make(chan error, 1)
		go func() { written <- load.run(t.Context()) }()
		eventually(t, "the relay is at work", time.Minute, func() bool { return load.committed.Load() > 1000 })

		require.NoError(t, first.process.Signal(syscall.SIGSTOP))
		second := startTwin(t, w, "checkpoint_interval: 20ms")
		began := time.Now()
		eventually(t, "the twin takes over", 15*time.Second, func() bool { return second.logs("slot taken") })
		takeover := time.Since(began)
		tick := scalar[int64](w, `SELECT tick FROM onceward.relay_state`)
		eventually(t, "the twin publishes", time.Minute, func() bool { return scalar[int64](w, `SELECT tick FROM onceward.relay_state`) > tick+5 })
		require.NoError(t, first.process.Signal(syscall.SIGCONT))
		eventually(t, "the first stands by", 30*time.Second, func() bool { return first.logs("standby") })
		require.NoError(t, <-written)
		caughtUp(t, w, second)
		require.EqualValues(t, 2, scalar[int64](w, `SELECT epoch FROM onceward.relay_state`), "the first has not taken the slot back")
		second.stop()
		eventually(t, "the first takes over from the twin that has stopped", 15*time.Second, func() bool { return sessions(first) == 2 })
		caughtUp(t, w, first)
		first.stop()
		require.Empty(t, summary(watch.stop().found))
		records, copies, committed := verifyAll(t, w, load.ghosts)
		t.Logf("PostgreSQL %s: taken over %s after the twin's start (wal_sender_timeout 2s), the first stood by; %d events, %d records, %d extra copies; %d samples, the checkpoint never went back",
			version, takeover.Round(time.Millisecond), committed, records, copies, watch.samples)
	})
}

// startTwin starts a second relay of the same name.
func startTwin(t *testing.T, w *environment, config ...string) *relayProcess {
	t.Helper()
	r := w.newRelay(w.config(append([]string{`admin: {listen: "off"}`}, config...)...), "")
	r.start()
	return r
}
