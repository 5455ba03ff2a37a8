//go:build e2e

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// settleAll waits until nothing is owed and nothing waits.
func (r *replays) settleAll() {
	r.t.Helper()
	caughtUp(r.t, r.environment, r.relay)
	eventually(r.t, "nothing waits", time.Minute, func() bool {
		return owed(r.environment) == 0 && scalar[int](r.environment, `SELECT count(*) FROM onceward.waiting`) == 0
	})
}

func (r *replays) tellLate(n int) {
	r.t.Helper()
	copies := 0
	for _, c := range r.inTopic(r.name + ".late") {
		copies += c - 1
	}
	states, lies := r.truth()
	r.t.Logf("in the topic %d of %d, %d copies; %v; %d called published and are not", len(r.inTopic(r.name+".late")), n, copies, states, lies)
	require.Zero(r.t, lies)
	require.Len(r.t, r.inTopic(r.name+".late"), n)
	seen := 0
	for _, m := range r.committed(r.name + ".late") {
		var v int
		require.NoError(r.t, scan(m.Value, &v))
		require.LessOrEqual(r.t, v, seen+1, "order of first occurrences")
		seen = max(seen, v)
	}
}

// TestWaitingMidReleaseMoves: the relay dies in a release, and something else
// happens before it starts again.
func TestWaitingMidReleaseMoves(t *testing.T) {
	t.Parallel()
	longOnly(t)
	const n = 10000
	for _, mode := range []string{"idempotent", "exactly-once"} {
		for _, move := range []string{"slot dropped", "adopt copy", "publication+slot"} {
			t.Run(mode+"/"+move, func(t *testing.T) {
				r := waitingEnvironment(t, "18", mode)
				r.dieReleasing(n)
				r.execute(`SELECT pg_drop_replication_slot($1)`, r.slot())
				switch move {
				case "adopt copy":
					r.execute(`UPDATE onceward.relay_state SET system_identifier = '1'`)
					outboxctl(t, r.dsn(maintainerLogin), "adopt", "--by", "copy", "--reason", "moved", "--yes")
				case "publication+slot":
					r.execute("DROP PUBLICATION " + r.slot())
					r.execute("CREATE PUBLICATION " + r.slot() + remakePublication)
				}
				r.relay.start()
				r.settleAll()
				r.relay.stop()
				r.tellLate(n)
			})
		}
	}
}

// TestWaitingFromPositionMidRelease: killed in a release in exactly-once mode;
// a mirror takes the place of Kafka.
func TestWaitingFromPositionMidRelease(t *testing.T) {
	t.Parallel()
	longOnly(t)
	const n = 10000
	second := secondKafka(t)
	for _, mode := range []string{"exactly-once", "idempotent"} {
		for _, how := range []string{"from-position", "continue"} {
			t.Run(mode+"/"+how, func(t *testing.T) {
				r := waitingEnvironment(t, "18", mode)
				r.dieReleasing(n)
				records := r.committed(r.name + ".late")
				r.lead(second.Addrs())
				r.topicOf(r.name + ".late")
				r.mirror(records)
				r.order(0, "adopt", "--kafka", how, "--cluster", clusterID(t, second.Addrs()), "--reason", "mirror", "--yes")
				r.relay.inMode(mode)
				r.relay.pointTo(`admin: {listen: "off"}`, "checkpoint_interval: 50ms")
				r.relay.start()
				r.settleAll()
				r.relay.stop()
				r.tellLate(n)
			})
		}
	}
}

// TestWaitingAdoptDumpTwice: events wait through two adoptions.
func TestWaitingAdoptDumpTwice(t *testing.T) {
	t.Parallel()
	longOnly(t)
	for _, mode := range []string{"idempotent", "exactly-once"} {
		t.Run(mode, func(t *testing.T) {
			r := waitingEnvironment(t, "18", mode)
			caughtUp(t, r.environment, r.relay)
			var keys []string
			for i := range 3 {
				for range 3 {
					keys = append(keys, r.enqueue("late", "a", []byte("{}")))
				}
				r.waits(len(keys))
				eventually(t, "nothing is pending", time.Minute, func() bool { return owed(r.environment) == 0 })
				r.relay.stop()
				if i == 2 {
					break
				}
				r.slotFree()
				r.execute(`SELECT pg_drop_replication_slot($1)`, r.slot())
				r.execute(fmt.Sprintf(`UPDATE onceward.relay_state SET system_identifier = '%d'`, i+1))
				outboxctl(t, r.dsn(maintainerLogin), "adopt", "--by", "dump", "--reason", "moved", "--yes")
				r.relay.start()
				r.relay.wait(30 * time.Second)
				gap := scalar[string](r.environment, `SELECT gap_id::text FROM onceward.gaps WHERE state = 'open'`)
				r.order(0, "gap", "accept", gap, "--reason", "in Kafka", "--yes")
				r.relay.start()
			}
			r.topicOf(r.name + ".late")
			r.relay.start()
			r.settleAll()
			r.relay.stop()
			t.Logf("%v", r.states())
			require.Equal(t, keys, r.keys(r.name+".late", "a"))
		})
	}
}
