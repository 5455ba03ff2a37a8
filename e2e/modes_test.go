//go:build e2e

package e2e

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// inMode makes the relay run in a mode, whatever its file says.
func (r *relayProcess) inMode(mode string) *relayProcess {
	r.env = append(r.env, "ONCEWARD_KAFKA_MODE="+mode, "ONCEWARD_TOPICS_CREATE=true", "ONCEWARD_TOPICS_REPLICATION_FACTOR=1")
	return r
}

// TestExactlyOnceMainJob: through hard kills of the relay, consumers with
// read_committed see each event once, in order per key, and nothing else.
func TestExactlyOnceMainJob(t *testing.T) {
	t.Parallel()
	for _, version := range versions {
		t.Run("PostgreSQL"+version, func(t *testing.T) {
			w := newEnvironment(t, version)
			w.install()
			w.createTopic(nil)
			load := &writers{pool: w.app, seed: 1, count: 8, aggregates: 40, target: math.MaxInt64, namespace: w.name}
			r := w.newRelay(w.config("checkpoint_interval: 20ms", "admin: {listen: \"off\"}"), "").inMode("exactly-once")
			r.start()
			eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
			written := make(chan error, 1)
			go func() { written <- load.run(t.Context()) }()
			for i := range int64(2) {
				eventually(t, "the writers go on", time.Minute, func() bool { return load.committed.Load() >= 5000*(i+1)/3 })
				killInFlight(t, w, r, load)
				r.start()
			}
			eventually(t, "the writers have written enough", time.Minute, func() bool { return load.committed.Load() >= 5000 })
			load.enough.Store(true)
			require.NoError(t, <-written)
			caughtUp(t, w, r)
			r.stop()
			seen := w.committed(w.topic())
			truth, err := readTruth(t.Context(), w.pool)
			require.NoError(t, err)
			found, copies := verify(seen, truth, load.ghosts, w.partitions)
			require.Empty(t, summary(found))
			require.Zero(t, copies, "read_committed shows each event once")
			require.Equal(t, "exactly-once", scalar[string](w, `SELECT mode FROM onceward.relay_state`))
			t.Logf("PostgreSQL %s: %d events, %d records, 0 copies", version, len(truth), len(seen))
		})
	}
}

// TestModesChangeAtTheStart: a relay goes on in the other mode from where it
// stood, as often as it is told to: out of exactly-once mode after a hard kill
// with work in flight, and into it after a graceful stop.
func TestModesChangeAtTheStart(t *testing.T) {
	t.Parallel()
	w := newEnvironment(t, versions[0])
	w.install()
	w.createTopic(nil)
	config := w.config("checkpoint_interval: 20ms", "admin: {listen: \"off\"}")
	// The first make the business table.
	load := &writers{pool: w.app, seed: 2, count: 4, aggregates: 20, target: 300, namespace: w.name}
	written := 0
	for _, mode := range []string{"exactly-once", "idempotent", "exactly-once", "exactly-once", "idempotent"} {
		r := w.newRelay(config, "").inMode(mode)
		r.start()
		eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
		require.Equal(t, mode, scalar[string](w, `SELECT mode FROM onceward.relay_state`))
		if written == 0 {
			require.NoError(t, load.run(t.Context()))
			written = scalar[int](w, `SELECT count(*) FROM onceward.outbox`)
		}
		for range 200 {
			writeOne(t, w)
			written++
		}
		if mode == "exactly-once" {
			_, out := checked(t, r)
			for _, topic := range []string{"onceward.checkpoint", "__consumer_offsets", "__transaction_state"} {
				require.Regexp(t, `(?m)^warning +topic `+topic+` .*1 replica; exactly once stands on it`, out, "one broker")
			}
			r.kill() // what was open is aborted, and nothing is published twice
			continue
		}
		caughtUp(t, w, r)
		written++
		r.stop()
	}
	truth, err := readTruth(t.Context(), w.pool)
	require.NoError(t, err)
	require.Len(t, truth, written)
	found, copies := verify(w.committed(w.topic()), truth, load.ghosts, w.partitions)
	require.Empty(t, summary(found))
	require.Zero(t, copies, "no change of the mode publishes twice")
}

// TestTheModeChangesInAGap: a relay in exactly-once mode is killed inside of a
// transaction, its slot is dropped, and it is started again as an idempotent one; also
// after it has written the gap down and was killed once more. Nobody's transaction is
// left open: what is called published is what read_committed shows, long before Kafka's
// timeout.
func TestTheModeChangesInAGap(t *testing.T) {
	t.Parallel()
	for name, crash := range map[string]string{"at once": "", "a kill later": "CRASH_AT=after-gap"} {
		t.Run(name, func(t *testing.T) {
			w := settled(t, versions[1])
			config := w.config("checkpoint_interval: 20ms", `admin: {listen: "off"}`)
			r := w.newRelay(config, "none").inMode("exactly-once")
			r.env = append(r.env, "ONCEWARD_KAFKA_TRANSACTION_INTERVAL=20s", "ONCEWARD_KAFKA_TRANSACTION_TIMEOUT=15m")
			r.start()
			eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
			caughtUp(t, w, r)
			out := w.ends()
			for range 50 {
				writeOne(t, w)
			}
			eventually(t, "some are in an open transaction", 15*time.Second, func() bool { return w.ends() > out })
			r.kill()
			require.NoError(t, w.dropSlots(t.Context()))
			if crash != "" {
				r.env = append(r.env, crash)
				r.start()
				require.Contains(t, r.wait(time.Minute), "slot")
			}
			next := w.newRelay(config, "").inMode("idempotent")
			next.env = append(next.env, "ONCEWARD_KAFKA_TRANSACTION_INTERVAL=20s", "ONCEWARD_KAFKA_TRANSACTION_TIMEOUT=15m")
			next.start()
			eventually(t, "it goes on", time.Minute, func() bool { return next.logs("slot taken") })
			caughtUp(t, w, next)
			out = w.ends()
			writeOne(t, w)
			eventually(t, "one more is out", 30*time.Second, func() bool { return w.ends() > out })
			next.kill() // it is idempotent: no transaction is left open
			next.start()
			caughtUp(t, w, next)
			eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
			seen := w.committed(w.topic())
			truth, err := readTruth(t.Context(), w.pool)
			require.NoError(t, err)
			found, copies := verify(seen, truth, nil, w.partitions)
			require.Empty(t, summary(found))
			require.LessOrEqual(t, copies, 2, "what was committed last before each kill is in doubt")
			next.stop()
			requireTrue(t, w)
		})
	}
}

// TestALostCheckpointIsTakenFromRelayState: the offset in Kafka is deleted under
// a relay that is down.
func TestALostCheckpointIsTakenFromRelayState(t *testing.T) {
	t.Parallel()
	w := newEnvironment(t, versions[1])
	w.install()
	w.createTopic(nil)
	load := &writers{pool: w.app, seed: 3, count: 4, aggregates: 20, target: 500, namespace: w.name}
	r := w.newRelay(w.config("checkpoint_interval: 20ms", "admin: {listen: \"off\"}"), "").inMode("exactly-once")
	r.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
	require.NoError(t, load.run(t.Context()))
	caughtUp(t, w, r)
	r.stop()
	group := "onceward-" + scalar[string](w, `SELECT system_identifier || '-' || slot FROM onceward.relay_state`)
	require.NoError(t, w.admin.DeleteConsumerGroup(group))
	writeOne(t, w)
	r.start()
	caughtUp(t, w, r)
	require.True(t, r.logs("the checkpoint in Kafka is gone"))
	r.stop()
	truth, err := readTruth(t.Context(), w.pool)
	require.NoError(t, err)
	found, copies := verify(w.committed(w.topic()), truth, load.ghosts, w.partitions)
	require.Empty(t, summary(found))
	require.Zero(t, copies, "relay_state had followed to the end")
}

// TestAStandbyNeverFencesTheOwner in exactly-once mode: it makes no producer
// while it has no slot.
func TestAStandbyNeverFencesTheOwner(t *testing.T) {
	t.Parallel()
	w := newEnvironment(t, versions[0])
	w.install()
	w.createTopic(nil)
	config := w.config("checkpoint_interval: 20ms", "admin: {listen: \"off\"}")
	owner := w.newRelay(config, "").inMode("exactly-once")
	owner.start()
	eventually(t, "the owner streams", 30*time.Second, func() bool { return owner.logs("slot taken") })
	standby := w.newRelay(config, "").inMode("exactly-once")
	standby.start()
	eventually(t, "the standby stands by", 30*time.Second, func() bool { return standby.logs("standby: another process holds the slot") })
	load := &writers{pool: w.app, seed: 4, count: 4, aggregates: 20, target: 2000, namespace: w.name}
	require.NoError(t, load.run(t.Context()))
	caughtUp(t, w, owner)
	require.False(t, owner.logs("session ended"), "nobody disturbed the owner")
	owner.kill()
	writeOne(t, w)
	caughtUp(t, w, standby)
	standby.stop()
	truth, err := readTruth(t.Context(), w.pool)
	require.NoError(t, err)
	found, copies := verify(w.committed(w.topic()), truth, load.ghosts, w.partitions)
	require.Empty(t, summary(found))
	require.Zero(t, copies)
}
