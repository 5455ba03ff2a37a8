//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/outbox"
)

// TestBadRowsOfOneProducer: one transaction of rows that can never be published,
// of more aggregates than may be parked, holds its own type: the others go on,
// nothing halts, and the operator's words about single letters are heard.
func TestBadRowsOfOneProducer(t *testing.T) {
	t.Parallel()
	for _, c := range modesAndVersions() {
		t.Run(c[0]+"/PostgreSQL"+c[1], func(t *testing.T) {
			r := newReplays(t, newEnvironment(t, c[1]), c[0])
			r.makeTopic(r.name+".other", nil)
			r.relay.stop()
			r.relay.env = append(r.relay.env, "ONCEWARD_MAX_PARKED_AGGREGATES=100", "ONCEWARD_KAFKA_MAX_MESSAGE_BYTES=10000")
			r.relay.start()
			open := func() int {
				return scalar[int](r.environment, `SELECT count(*) FROM onceward.dead_letters WHERE state = 'open'`)
			}
			began := time.Now()
			const rows = 250
			r.execute(`INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload, headers)
				SELECT ($3::text || '-7000-8000-' || lpad(i::text, 12, '0'))::uuid, $1, 'other', 'bad-' || i, 'OrderChanged', convert_to(repeat('x', 20000), 'UTF8'), '{}' FROM generate_series(1, $2::int) i`,
				r.name, rows, outbox.FirstID(began).String()[:13])
			r.arrives(r.topic(), r.small("free"))
			t.Logf("%s: an event of another type arrives %s after %d bad rows", c[0], time.Since(began), rows)
			r.letters(100)
			require.True(t, r.relay.logs("max_parked_aggregates"))
			require.False(t, r.relay.logs("halted"))
			for discarded := 0; discarded < rows; {
				n := min(100, rows-discarded)
				eventually(t, "as many letters as there is room for", time.Minute, func() bool { return open() == n })
				r.order(0, "dead", "discard", "--all", "--reason", "test data", "--yes", "--wait", "30s")
				discarded += n
			}
			r.arrives(r.name+".other", r.enqueue("other", "good", []byte("{}")))
			r.relay.stop()
		})
	}
}
