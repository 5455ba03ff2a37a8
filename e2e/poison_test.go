//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/outbox"
)

// modesAndVersions are the modes, each on one end of the supported versions; all
// of them in the long form.
func modesAndVersions() [][2]string {
	if full() {
		return [][2]string{{"idempotent", "15"}, {"idempotent", "18"}, {"exactly-once", "15"}, {"exactly-once", "18"}}
	}
	return [][2]string{{"idempotent", "15"}, {"exactly-once", "18"}}
}

// TestPoisonHoldsItsAggregate: events that can never be published (too large,
// headers that are reserved, a topic that cannot be) become dead letters with those
// of their aggregate that follow; ten thousand others pass. What is released
// while the relay lags keeps the aggregate's order. A relay that is killed at each
// step publishes nothing twice and writes no letter twice.
func TestPoisonHoldsItsAggregate(t *testing.T) {
	t.Parallel()
	for _, c := range modesAndVersions() {
		t.Run(c[0]+"/PostgreSQL"+c[1], func(t *testing.T) {
			r := newReplays(t, newEnvironment(t, c[1]), c[0])
			r.makeTopic(r.name+".other", nil)
			r.othersPass()
			r.releaseWhileItLags()
			r.relay.stop()
			for _, point := range []string{
				"before-letter", "after-letter", "after-retrying", "mid-retry", "before-settle", "before-confirm", "before-txn-commit", "after-txn-commit",
			} {
				if c[0] == "idempotent" && (point == "before-txn-commit" || point == "after-txn-commit") {
					continue
				}
				r.dieAt(point)
			}
		})
	}
}

// raw commits an event that Enqueue would refuse, as a writer without it may.
func (r *replays) raw(aggregateType, aggregate, headers string) string {
	r.t.Helper()
	key, err := outbox.NewKey(r.name)
	require.NoError(r.t, err)
	r.execute(`INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload, headers) VALUES ($1, $2, $3, $4, 'OrderChanged', '{}', $5)`,
		key.UUID(), r.name, aggregateType, aggregate, headers)
	return key.String()
}

func (r *replays) othersPass() {
	t := r.t
	const others = 10_000
	large, odd, nowhere := r.poison("large"), r.raw("order", "odd", `{"position": "forged"}`), r.raw("no topic!", "nowhere", `{}`)
	behindLarge, behindOdd := r.small("large"), r.small("odd")
	require.NoError(t, bulk(t.Context(), r.environment, 0, others, 10))
	free := r.small("free")
	r.letters(5)
	r.arrives(r.topic(), free)
	seen := make(map[string]int)
	for _, m := range r.committed(r.topic()) {
		seen[headerOf(m, outbox.HeaderKey)]++
	}
	for _, key := range []string{large, odd, nowhere, behindLarge, behindOdd} {
		require.Zero(t, seen[key], "%s is not published", key)
		require.Equal(t, 1, scalar[int](r.environment, `SELECT count(*) FROM onceward.dead_letters WHERE namespace || ':' || letter_id = $1 AND state = 'open'`, key))
	}
	require.Len(t, seen, others+1)
	for key, n := range seen {
		require.Equal(t, 1, n, key)
	}
	require.Contains(t, r.order(0, "dead", "list"), large)
	r.order(0, "dead", "discard", large, odd, nowhere, behindLarge, behindOdd, "--reason", "seen", "--yes", "--wait", "30s")
}

// releaseWhileItLags: the release of an aggregate and more of its events commit
// while the relay rests. It publishes them in the order in which they committed.
func (r *replays) releaseWhileItLags() {
	t := r.t
	topic := r.name + ".other"
	bad, behind := r.enqueue("other", "lag", make([]byte, 1_200_000)), r.enqueue("other", "lag", []byte("{}"))
	r.letters(2)
	r.order(0, "pause")
	eventually(t, "the relay rests", 30*time.Second, func() bool { return r.relay.logs(`msg="paused by an operator"`) })
	before := r.enqueue("other", "lag", []byte("{}"))
	r.order(0, "dead", "edit", bad, "--payload-file", r.payload("mended"), "--reason", "too large", "--yes", "--wait", "0s")
	r.order(0, "dead", "retry", bad, "--reason", "mended", "--yes", "--wait", "0s")
	after := r.enqueue("other", "lag", []byte("{}"))
	r.order(0, "resume")
	r.arrives(topic, after)
	require.Equal(t, []string{bad, behind, before, after}, r.keys(topic, "lag"))
}

func (r *replays) payload(text string) (file string) {
	file = filepath.Join(r.t.TempDir(), "payload")
	require.NoError(r.t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// dieAt has a relay die at a point while it parks and releases an aggregate, and
// another one finish.
func (r *replays) dieAt(point string) {
	t := r.t
	topic, aggregate := r.name+".other", "dies "+point
	dying := r.newRelay(r.config, "none").inMode(r.mode)
	dying.env = append(dying.env, "CRASH_AT="+point)
	dying.start()
	bad, behind := r.enqueue("other", aggregate, make([]byte, 1_200_000)), r.enqueue("other", aggregate, []byte("{}"))
	open := func() int {
		return scalar[int](r.environment, `SELECT count(*) FROM onceward.dead_letters WHERE aggregate_id = $1 AND state = 'open'`, aggregate)
	}
	dead := func() bool {
		select {
		case <-dying.process.Done():
			return true
		default:
			return false
		}
	}
	eventually(t, "letters, or death", time.Minute, func() bool { return open() == 2 || dead() })
	release := func() {
		r.order(0, "dead", "edit", bad, "--payload-file", r.payload("mended"), "--reason", "too large", "--yes", "--wait", "0s")
		r.order(0, "dead", "retry", bad, "--reason", "mended", "--yes", "--wait", "0s")
	}
	released := !dead()
	if released {
		release()
	}
	eventually(t, "the relay dies at "+point, time.Minute, dead)
	dying.process = nil
	r.relay.start()
	if !released {
		eventually(t, "letters", time.Minute, func() bool { return open() == 2 })
		release()
	}
	last := r.enqueue("other", aggregate, []byte("{}"))
	r.arrives(topic, last)
	eventually(t, "the letters are settled", time.Minute, func() bool {
		return scalar[int](r.environment, `SELECT count(*) FROM onceward.dead_letters WHERE aggregate_id = $1 AND state = 'replayed'`, aggregate) == 2
	})
	require.Equal(t, 2, scalar[int](r.environment, `SELECT count(*) FROM onceward.dead_letters WHERE aggregate_id = $1`, aggregate))
	keys := r.keys(topic, aggregate)
	if r.mode == "idempotent" {
		keys = firsts(keys) // a crash repeats what was not confirmed
	}
	require.Equal(t, []string{bad, behind, last}, keys, point)
	r.relay.stop()
}

// firsts returns the first occurrence of each.
func firsts(keys []string) (first []string) {
	for _, key := range keys {
		if !slices.Contains(first, key) {
			first = append(first, key)
		}
	}
	return first
}
