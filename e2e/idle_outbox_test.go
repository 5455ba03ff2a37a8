//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestIdleOutboxKeepsNoLog: nobody writes an event while the rest of the database
// is busy. The slot follows the end of the log, and the checkpoints that this
// takes do not feed on the log that they write themselves.
func TestIdleOutboxKeepsNoLog(t *testing.T) {
	size := 320 << 20
	if full() {
		size = 1 << 30
	}
	onAVersion(t, func(t *testing.T, version string) {
		w := ownEnvironment(t, version, nil) // what other tests left is vacuumed, and makes log
		r := streaming(t, w, "checkpoint_interval: 100ms")
		watch := watchPositions(t, w)
		caughtUp(t, w, r)
		tick := scalar[int64](w, `SELECT tick FROM onceward.relay_state`)
		const part = 32 << 20
		var most int64
		for range size / part {
			foreignLog(w, part)
			w.execute("CHECKPOINT")
			eventually(t, "the slot follows the end of the log", time.Minute, func() bool {
				lag, kept := w.slotBytes()
				most = max(most, kept)
				return lag < 2<<20
			})
		}
		require.Less(t, most, int64(4*part), "the server kept a part of it at any time")
		ticks := scalar[int64](w, `SELECT tick FROM onceward.relay_state`) - tick
		require.LessOrEqual(t, ticks, int64(size>>20)+4, "one checkpoint per MiB of foreign log at most, and those that follow by time")
		lag, kept := w.slotBytes()
		position := scalar[string](w, `SELECT confirmed_lsn::text FROM onceward.relay_state`)
		looks := watch.count()
		eventually(t, "twenty rounds of the relay pass", time.Minute, func() bool { return watch.count() > looks+100 }) // a look takes 20 ms or more
		require.Equal(t, position, scalar[string](w, `SELECT confirmed_lsn::text FROM onceward.relay_state`), "an idle relay writes nothing")
		caughtUp(t, w, r)
		r.stop()
		require.Empty(t, summary(watch.stop().found))
		records, _, committed := verifyAll(t, w, nil)
		require.Equal(t, committed, records)
		require.Equal(t, 1, sessions(r))
		t.Logf("PostgreSQL %s: %d MiB of foreign log, %d idle checkpoints, at the end %d KiB behind and %d KiB kept (%d MiB at most between two looks); %d samples",
			version, size>>20, ticks, lag>>10, kept>>10, most>>20, watch.samples)
	})
}

// TestBurstLeavesNoLog: after a burst nobody writes anything. The server keeps
// the burst's log only until one idle checkpoint has followed; by its own habits,
// without CHECKPOINT, and without another checkpoint after that one.
func TestBurstLeavesNoLog(t *testing.T) {
	for _, version := range versions {
		t.Run("PostgreSQL"+version, func(t *testing.T) {
			t.Parallel()                         // most of it is waiting
			w := ownEnvironment(t, version, nil) // whatever others do would be foreign log
			r := streaming(t, w)
			require.NoError(t, bulk(t.Context(), w, 0, 40_000, 1000))
			caughtUp(t, w, r)
			after := scalar[string](w, `SELECT pg_current_wal_insert_lsn()::text`)
			_, burst := w.slotBytes()
			require.Greater(t, burst, int64(40<<20), "the server keeps the burst's log")
			tick, began := scalar[int64](w, `SELECT tick FROM onceward.relay_state`), time.Now()
			released := func() bool {
				return scalar[bool](w, `SELECT restart_lsn >= $1::pg_lsn FROM pg_replication_slots`, after)
			}
			eventually(t, "the server lets go of the burst's log", 45*time.Second, released)
			took := time.Since(began)
			require.LessOrEqual(t, scalar[int64](w, `SELECT tick FROM onceward.relay_state`)-tick, int64(2), "one checkpoint followed, beside one of the last event")
			_, kept := w.slotBytes()
			r.stop()
			t.Logf("PostgreSQL %s: %d MiB of log kept after the burst, %d KiB kept %s later", version, burst>>20, kept>>10, took.Round(time.Second))
		})
	}
}

// TestIdleOutboxWritesNothing: with nobody writing, neither a relay nor its
// standby writes anything. Under archive_timeout each write, however small, would
// cost a whole segment.
func TestIdleOutboxWritesNothing(t *testing.T) {
	w := ownEnvironment(t, versions[1], map[string]string{"archive_timeout": "2s"})
	r := streaming(t, w, "checkpoint_interval: 100ms")
	caughtUp(t, w, r)
	standby := staying(w)
	standby.start()
	eventually(t, "both have said how they are", 30*time.Second, func() bool {
		return scalar[string](w, `SELECT coalesce(string_agg(state, ' ' ORDER BY state), '') FROM onceward.relay_health`) == "standby streaming"
	})
	segment := func() string { return scalar[string](w, `SELECT pg_walfile_name(pg_current_wal_insert_lsn())`) }
	// The checkpoints that follow a burst, ours and the server's, pass first.
	var last string
	var since time.Time
	eventually(t, "no segment begins for 25 seconds", 2*time.Minute, func() bool {
		if now := segment(); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > 25*time.Second
	})
	r.stop()
	standby.stop()
}
