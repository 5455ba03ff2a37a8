//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// nothingHeld waits until nothing waits and no lane is held.
func (r *replays) nothingHeld() {
	r.t.Helper()
	eventually(r.t, "no lane is held", 30*time.Second, func() bool {
		return scalar[int](r.environment, `SELECT (SELECT count(*) FROM onceward.waiting) + (SELECT count(*) FROM onceward.waiting_copies) + (SELECT count(*) FROM onceward.lanes)`) == 0
	})
}

// TestSkipEndsWhatWaits: an event for a topic that never comes is given up. It waits
// no more, its route is no alarm any more, and its partition is dropped.
func TestSkipEndsWhatWaits(t *testing.T) {
	t.Parallel()
	for _, c := range modesAndVersions() {
		t.Run(c[0]+"/PostgreSQL"+c[1], func(t *testing.T) {
			r := waitingEnvironment(t, c[1], c[0])
			old := func(daysAgo int, kind string) (key string) {
				return scalar[string](r.environment, `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload)
					SELECT (lpad(to_hex((extract(epoch FROM now() - make_interval(days => $3)) * 1000)::bigint), 12, '0') || '70008d00' || lpad('1', 12, '0'))::uuid, $1, $2, 'a', 'Changed', '{}'
					RETURNING namespace || ':' || id`, r.name, kind, daysAgo)
			}
			key, other := old(3, "typo"), old(4, "order")
			r.arrives(r.topic(), other)
			r.waits(1)
			require.Contains(t, r.order(3, "status"), "HELD")
			r.order(0, "skip", key, "--reason", "a typo", "--yes")
			r.nothingHeld()
			require.Equal(t, map[string]int{"discarded": 1, "published": 1}, r.states())
			require.Contains(t, r.order(0, "dead", "show", key), "a typo")
			caughtUp(t, r.environment, r.relay)
			eventually(t, "all is well", 30*time.Second, func() bool {
				out, code := asked(t, r.dsn(operatorLogin), "status")
				return code == 0 && !strings.Contains(out, "HELD")
			})
			eventually(t, "the partitions of both are dropped", 2*time.Minute, func() bool {
				outboxctlAny(t, r.dsn(maintainerLogin), "partitions", "maintain", "--keep", "1")
				return scalar[int](r.environment, `SELECT count(*) FROM onceward.outbox WHERE namespace || ':' || id = ANY($1)`, []string{key, other}) == 0
			})
			next := r.enqueue("typo", "a", []byte("{}"))
			r.waits(1)
			r.topicOf(r.name + ".typo")
			r.arrives(r.name+".typo", next)
			r.nothingHeld()
			r.relay.stop()
		})
	}
}

// TestSkipDiesAnywhere: a relay that is killed at any step of giving up what waits
// has done it after its next start.
func TestSkipDiesAnywhere(t *testing.T) {
	t.Parallel()
	for _, c := range modesAndVersions() {
		t.Run(c[0]+"/PostgreSQL"+c[1], func(t *testing.T) {
			r := waitingEnvironment(t, c[1], c[0])
			plain := r.relay.env
			for _, point := range []string{"after-skip", "after-drop"} {
				kind := strings.ReplaceAll(point, "-", "")
				r.relay.stop()
				r.relay.env = append(append([]string{}, plain...), "CRASH_AT="+point)
				r.relay.start()
				given, left := r.enqueue(kind, "a", []byte("{}")), r.enqueue(kind, "a", []byte("{}"))
				only := r.enqueue(kind+"-only", "a", []byte("{}"))
				r.waits(3)
				for _, key := range []string{given, only} {
					r.order(0, "skip", key, "--reason", "a typo", "--yes")
				}
				select {
				case <-r.relay.process.Done():
				case <-time.After(time.Minute):
					t.Fatalf("it does not die at %s", point)
				}
				r.relay.process, r.relay.env = nil, plain
				r.relay.start()
				eventually(t, "only what was not given up waits", time.Minute, func() bool {
					return scalar[int](r.environment, `SELECT count(*) FROM onceward.waiting`) == 1 && scalar[int](r.environment, `SELECT count(*) FROM onceward.lanes`) == 1 &&
						scalar[int](r.environment, `SELECT cardinality(skip) FROM onceward.relay_state`) == 0
				})
				r.topicOf(r.name + "." + kind)
				r.arrives(r.name+"."+kind, left)
				r.nothingHeld()
				require.Equal(t, []string{left}, firsts(r.keys(r.name+"."+kind, "a")))
				states := account(t, r.environment)
				require.Equal(t, "discarded", states[given])
				require.Equal(t, "discarded", states[only])
			}
			r.relay.stop()
		})
	}
}
