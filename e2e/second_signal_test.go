//go:build e2e

package e2e

import (
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSecondSignal: told to stop while Kafka answers nothing, the relay waits for
// the acknowledgements of what it has handed over. A second signal ends it at
// once, with the status of a process that died of that signal; nothing is lost.
func TestSecondSignal(t *testing.T) {
	w := newEnvironment(t, versions[0])
	r := stoppedInFlight(t, w, 500)
	began := time.Now()
	require.NoError(t, r.process.Signal(syscall.SIGTERM))
	r.wait(2 * time.Second)
	took := time.Since(began)
	var exit *exec.ExitError
	require.ErrorAs(t, r.process.Err(), &exit)
	require.Equal(t, 143, exit.ExitCode(), "what a shell shows for a process that died of SIGTERM")
	nothingLost(t, w, r)
	t.Logf("ended %s after the second signal (stop_grace 30s)", took.Round(time.Millisecond))
}

// TestStopGrace: the same, and nobody sends a second signal: the relay gives up
// waiting after stop_grace, and says so.
func TestStopGrace(t *testing.T) {
	t.Setenv("ONCEWARD_TOPICS_CREATE", "true") // the checkpoint's
	t.Setenv("ONCEWARD_TOPICS_REPLICATION_FACTOR", "1")
	// A transaction that begins may wait for Kafka itself, with all but the first event still to be handed over.
	for mode, least := range map[string]float64{"idempotent": 500, "exactly-once": 1} {
		t.Run(mode, func(t *testing.T) {
			t.Setenv("ONCEWARD_KAFKA_MODE", mode)
			w := newEnvironment(t, versions[0])
			r := stoppedInFlight(t, w, least, "stop_grace: 1s")
			log := r.wait(15 * time.Second)
			var exit *exec.ExitError
			require.ErrorAs(t, r.process.Err(), &exit)
			require.Equal(t, 1, exit.ExitCode())
			require.Contains(t, log, "relay: stop: flush before stopping")
			require.Equal(t, 1, strings.Count(log, "stopping: waiting until Kafka has acknowledged what is in flight"), "it is said what it waits for")
			require.Regexp(t, map[string]string{"idempotent": "events=500 stop_grace=1s", "exactly-once": `events=[1-9]\d* stop_grace=1s`}[mode], log)
			nothingLost(t, w, r)
		})
	}
}

// stoppedInFlight returns a relay that has been told to stop once, with so many events at
// least in flight, of 500, to a broker that stands still until the test ends.
func stoppedInFlight(t *testing.T, w *environment, least float64, config ...string) *relayProcess {
	t.Helper()
	r := streaming(t, w, config...)
	caughtUp(t, w, r) // the topic is known
	resume := stall(t)
	t.Cleanup(resume)
	require.NoError(t, bulk(t.Context(), w, 0, 500, 100))
	eventually(t, "the relay has handed them over", 30*time.Second, func() bool {
		inFlight, _ := metric(t, r, "onceward_events_in_flight")
		return inFlight >= least
	})
	address := adminAddress(t, r)
	require.NoError(t, r.process.Signal(syscall.SIGTERM))
	eventually(t, "it has heard the first signal", 10*time.Second, func() bool {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	select {
	case <-r.process.Done():
		t.Fatal("it did not wait for the acknowledgements")
	default:
	}
	return r
}

// nothingLost lets the broker go on and a new process publish the rest.
func nothingLost(t *testing.T, w *environment, r *relayProcess) {
	t.Helper()
	require.NoError(t, syscall.Kill(kafka(t).PID(0), syscall.SIGCONT))
	r.start()
	caughtUp(t, w, r)
	r.stop()
	truth, err := readTruth(t.Context(), w.pool)
	require.NoError(t, err)
	seen := w.committed(w.topic())
	found, _ := verify(seen, truth, nil, w.partitions)
	require.Empty(t, summary(found))
	require.GreaterOrEqual(t, len(seen), len(truth))
}
