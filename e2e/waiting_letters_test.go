//go:build e2e

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestWaitingMendedFollowerOrder: an aggregate is parked, its lane is held; the
// repair of a gap meets a later event of it, the stream another one. After a restart
// they follow, and all are retried.
func TestWaitingMendedFollowerOrder(t *testing.T) {
	t.Parallel()
	r := waitingEnvironment(t, "18", "idempotent")
	r.topicOf(r.name + ".late")
	bad := r.enqueue("late", "a", make([]byte, 1_200_000))
	r.letters(1)
	r.order(0, "pause", "--route", r.name+".late")
	r.relay.stop()
	r.relay.start()
	r.enqueue("late", "z", []byte("{}"))
	r.waits(1)
	caughtUp(t, r.environment, r.relay)
	r.relay.stop()
	r.slotFree()
	mended := r.enqueue("late", "a", []byte("1"))
	r.execute(`SELECT pg_drop_replication_slot($1)`, r.slot())
	r.relay.start()
	r.waits(2)
	next := r.enqueue("late", "a", []byte("2"))
	r.waits(3)
	caughtUp(t, r.environment, r.relay)
	r.relay.stop()
	r.relay.start()
	r.order(0, "resume", "--route", r.name+".late")
	r.waits(0)
	caughtUp(t, r.environment, r.relay)
	t.Logf("bad %s mended %s next %s; letters: %s; topic: %v", bad, mended, next,
		scalar[string](r.environment, `SELECT coalesce(string_agg(letter_id || ' ' || state || ' ' || position || ' ' || error_class, ', ' ORDER BY seq), 'none') FROM onceward.dead_letters`), r.keys(r.name+".late", "a"))
	r.order(0, "dead", "edit", bad, "--payload-file", r.payload("mended"), "--reason", "too large", "--yes", "--wait", "30s")
	t.Log(r.order(0, "dead", "retry", bad, "--reason", "mended", "--yes", "--wait", "30s"))
	require.Equal(t, []string{bad, mended, next}, r.keys(r.name+".late", "a"))
	r.relay.stop()
}

// TestWaitingSkipOfReleased: an operator gives an event up that waited, and was
// released within the same tick.
func TestWaitingSkipOfReleased(t *testing.T) {
	t.Parallel()
	w := settled(t, "18")
	r := &replays{environment: w, mode: "idempotent", config: w.config(`admin: {listen: "off"}`, "checkpoint_interval: 8s")}
	r.relay = w.newRelay(r.config, "none").inMode(r.mode)
	r.relay.env = append(r.relay.env, "ONCEWARD_TOPICS_CREATE=false")
	r.relay.start()
	eventually(t, "the relay streams", time.Minute, func() bool { return r.relay.logs("slot taken") })
	key := r.enqueue("late", "a", []byte("{}"))
	r.waits(1)
	r.topicOf(r.name + ".late")
	r.arrives(r.name+".late", key)
	t.Logf("in the topic, and called %s", account(t, w)[key])
	t.Log(outboxctlAny(t, r.dsn(operatorLogin), "skip", key, "--reason", "not wanted", "--yes"))
	eventually(t, "it is decided", time.Minute, func() bool { s := account(t, w)[key]; return s != "waiting" && s != "pending" })
	t.Logf("words left: %s", scalar[string](w, `SELECT skip::text FROM onceward.relay_state`))
	t.Logf("called %s; the topic has %v", account(t, w)[key], r.keys(r.name+".late", "a"))
	require.Equal(t, "published", account(t, w)[key])
	r.relay.stop()
}

// TestWaitingModeChangesMidRelease: killed in a release, and the mode changes.
func TestWaitingModeChangesMidRelease(t *testing.T) {
	t.Parallel()
	longOnly(t)
	const n = 20000
	r := waitingEnvironment(t, "15", "exactly-once")
	r.dieReleasing(n)
	for i, mode := range []string{"idempotent", "exactly-once", "idempotent"} {
		r.relay.inMode(mode)
		if i < 2 {
			plain := r.relay.env
			r.relay.env = append(append([]string{}, plain...), "CRASH_AT=mid-release:500")
			r.relay.start()
			select {
			case <-r.relay.process.Done():
			case <-time.After(20 * time.Second):
				r.relay.kill()
			}
			r.relay.env = plain
			r.slotFree()
			continue
		}
		r.relay.start()
	}
	r.waits(0)
	caughtUp(t, r.environment, r.relay)
	r.relay.stop()
	copies := 0
	for _, c := range r.inTopic(r.name + ".late") {
		copies += c - 1
	}
	states, lies := r.truth()
	t.Logf("%v, %d lies, %d copies", states, lies, copies)
	require.Len(t, r.inTopic(r.name+".late"), n)
	keys := r.keys(r.name+".late", "b")
	last := 0
	seen := map[string]bool{}
	_ = keys
	for _, m := range r.committed(r.name + ".late") {
		var v int
		require.NoError(t, scan(m.Value, &v))
		if !seen[string(m.Value)] {
			require.Equal(t, last+1, v)
			last = v
		}
		seen[string(m.Value)] = true
	}
}

func scan(b []byte, v *int) error { _, err := fmt.Sscan(string(b), v); return err }
