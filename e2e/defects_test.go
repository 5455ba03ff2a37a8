//go:build e2e

package e2e

import (
	"math"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/process"
)

// TestNoDefectInProduction: a binary that is built without the tag of the defects
// has nothing of the package that could switch one on.
func TestNoDefectInProduction(t *testing.T) {
	for tags, want := range map[string]bool{"": false, defective: true} {
		symbols, err := process.Run(t.Context(), process.Spec{Path: "go", Args: []string{"tool", "nm", relayBinary(t, tags)}})
		require.NoError(t, err)
		require.Equal(t, want, strings.Contains(symbols, "github.com/onceward/onceward/internal/fault."), "tags %q", tags)
	}
}

// injected is an environment whose relay streams with a defect.
func injected(t *testing.T, defect string, config ...string) (*environment, *relayProcess) {
	t.Helper()
	w := newEnvironment(t, versions[0])
	w.execute(`ALTER DATABASE ` + w.name + ` SET wal_sender_timeout = '1s'`)
	w.install()
	w.createTopic(nil)
	w.execute(oneAggregate + `; GRANT ALL ON counters, business TO PUBLIC`)
	r := w.newRelay(w.config(append([]string{`admin: {listen: "off"}`}, config...)...), defect)
	r.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
	return w, r
}

// TestSinkStallsCatchesDefects: a relay that says nothing while its queue is full
// does not keep its walsender.
func TestSinkStallsCatchesDefects(t *testing.T) {
	w, r := injected(t, "mute-when-full", "queue: {bytes: 64KiB}")
	caughtUp(t, w, r)
	walsender := scalar[int](w, `SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1`, w.slot())
	resume := stall(t)
	defer resume()
	require.NoError(t, bulk(t.Context(), w, 0, 2000, 1000))
	eventually(t, "the walsender is another, or none", 30*time.Second, func() bool {
		return scalar[int](w, `SELECT coalesce(active_pid, 0) FROM pg_replication_slots WHERE slot_name = $1`, w.slot()) != walsender
	})
}

// TestMuteWalsenderCatchesDefects: a relay that waits for less than
// wal_sender_timeout begins again and again.
func TestMuteWalsenderCatchesDefects(t *testing.T) {
	w, r := injected(t, "impatient")
	caughtUp(t, w, r)
	w.execute(`CREATE UNLOGGED TABLE large AS SELECT i FROM generate_series(1, 2000000) i`)
	w.execute(`ALTER TABLE large SET LOGGED, ALTER i TYPE bigint`)
	eventually(t, "more sessions than TestMuteWalsender allows", time.Minute, func() bool { return sessions(r) > 2 })
}

// TestSchemaChangesCatchDefects: a relay that looks for the columns where they
// were misreads a row, or cannot read it.
func TestSchemaChangesCatchDefects(t *testing.T) {
	t.Parallel()
	w, r := injected(t, "columns-by-place", "checkpoint_interval: 20ms")
	caughtUp(t, w, r)
	for _, sql := range harmless {
		w.alter(sql)
		writeOne(t, w)
	}
	log := r.wait(30 * time.Second) // TestSchemaChangesMidStream wants it to catch up
	require.Contains(t, log, "decode")
}

// TestPauseByStopCatchesDefects: a relay that wakes after another has taken over,
// and writes its checkpoint all the same.
func TestPauseByStopCatchesDefects(t *testing.T) {
	w, first := injected(t, "no-epoch", "checkpoint_interval: 20ms")
	w.execute(`DROP TABLE counters, business`) // the writers make their own
	watch := watchPositions(t, w)
	load := &writers{pool: w.app, seed: 8, count: 4, aggregates: 40, target: math.MaxInt64, namespace: w.name}
	written := make(chan error, 1)
	go func() { written <- load.run(t.Context()) }()
	waitFor(t, load, written, 1000)
	resume := stall(t)
	readOn(t, w, load)
	require.NoError(t, first.process.Signal(syscall.SIGSTOP))
	resume() // what it has handed over is acknowledged when it wakes
	second := startTwin(t, w, "checkpoint_interval: 20ms")
	passed := scalar[string](w, `SELECT pg_current_wal_insert_lsn()::text`)
	eventually(t, "the twin takes over and passes it", time.Minute, func() bool {
		return second.logs("slot taken") && scalar[bool](w, `SELECT confirmed_lsn > $1::pg_lsn FROM onceward.relay_state`, passed)
	})
	load.enough.Store(true)
	require.NoError(t, <-written)
	// What the twin writes next would hide what the first does. It writes nothing
	// more once all is published: a checkpoint comes before the snapshot.
	eventually(t, "the twin rests", time.Minute, func() bool {
		return scalar[int](w, `SELECT count(*) FROM onceward.outbox o, onceward.published_snapshots s WHERE NOT pg_visible_in_snapshot(o.tx_id, s.snapshot)`) == 0
	})
	require.NoError(t, first.process.Signal(syscall.SIGCONT))
	eventually(t, "the checkpoint goes back", 30*time.Second, func() bool { return strings.Contains(summary(watch.now()), checkpointMonotone) })
}
