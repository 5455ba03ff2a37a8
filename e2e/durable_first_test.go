//go:build e2e

package e2e

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestDurableFirst: for a while the database does not take the checkpoint, while
// status updates go to the server as ever. The slot stays where the last durable
// checkpoint is, so that a kill -9 at that moment loses nothing.
func TestDurableFirst(t *testing.T) {
	t.Parallel()
	onVersions(t, func(t *testing.T, version string) {
		w, r, load := durableFirst(t, version, "")
		r.start()
		caughtUp(t, w, r)
		r.stop()
		records, copies, committed := verifyAll(t, w, load.ghosts)
		t.Logf("PostgreSQL %s: killed between acknowledgement and checkpoint; %d events, %d records, %d extra copies", version, committed, records, copies)
	})
}

// TestDurableFirstCatchesDefects: a relay that lets the server forget first.
func TestDurableFirstCatchesDefects(t *testing.T) {
	t.Parallel()
	w, _, _ := durableFirst(t, versions[0], "slot-first")
	require.True(t, scalar[bool](w, slotAhead), "nobody noticed")
}

// durableFirst returns a relay that was killed while its checkpoint waited.
func durableFirst(t *testing.T, version, defect string) (*environment, *relayProcess, *writers) {
	w := newEnvironment(t, version)
	w.execute(`ALTER DATABASE ` + w.name + ` SET wal_sender_timeout = '1s'`) // a status update every 333 ms
	w.install()
	w.createTopic(nil)
	r := w.newRelay(w.config("checkpoint_interval: 20ms", `admin: {listen: "off"}`), defect)
	r.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
	watch := watchPositions(t, w)
	load := &writers{pool: w.app, seed: 9, count: 4, aggregates: 40, target: math.MaxInt64, namespace: w.name}
	written := make(chan error, 1)
	go func() { written <- load.run(t.Context()) }()
	waitFor(t, load, written, 1000)

	held := holdCheckpoint(t, w)
	before := w.ends()
	told(t, w)
	for defect != "" && !scalar[bool](w, slotAhead) { // a checkpoint may move the place inside a transaction alone
		held()
		held = holdCheckpoint(t, w)
		told(t, w)
	}
	eventually(t, "records come in meanwhile", 30*time.Second, func() bool { return w.ends() > before })
	r.kill()
	w.execute(`SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = '` + relayLogin + `' AND datname = current_database()`) // its statement with it
	held()
	load.enough.Store(true)
	require.NoError(t, <-written)
	found := watch.stop().found
	if defect == "" {
		require.Empty(t, summary(found))
	} else {
		require.Contains(t, summary(found), confirmAfterDurable)
	}
	return w, r, load
}

// told waits for three status updates.
func told(t *testing.T, w *environment) {
	t.Helper()
	said := map[string]bool{}
	eventually(t, "three status updates come in", 30*time.Second, func() bool {
		said[scalar[string](w, `SELECT coalesce(max(reply_time)::text, '') FROM pg_stat_replication WHERE application_name LIKE '%'||$1`, w.slot())] = true
		return len(said) > 3
	})
}

// slotAhead: the server was told to forget what no durable checkpoint says has ended.
const slotAhead = `SELECT s.confirmed_flush_lsn > r.confirmed_lsn FROM pg_replication_slots s, onceward.relay_state r WHERE s.slot_name = r.slot`

// holdCheckpoint locks the relay's row until release is called, at a moment at
// which it is the statement of the checkpoint that waits for it.
func holdCheckpoint(t *testing.T, w *environment) (release func()) {
	t.Helper()
	for range 100 {
		held, err := w.pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = held.Exec(t.Context(), `SELECT FROM onceward.relay_state FOR UPDATE`)
		require.NoError(t, err)
		var waiting string
		eventually(t, "the relay waits", 10*time.Second, func() bool {
			waiting = scalar[string](w, `SELECT coalesce(max(query), '') FROM pg_stat_activity
				WHERE wait_event_type = 'Lock' AND usename = $1 AND datname = current_database()`, relayLogin)
			return waiting != ""
		})
		if strings.Contains(waiting, "SET confirmed_lsn") {
			return func() { require.NoError(t, held.Rollback(t.Context())) }
		}
		require.NoError(t, held.Rollback(t.Context()))
	}
	t.Fatal("the relay never waited with its checkpoint")
	return nil
}
