//go:build e2e

package e2e

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRepairHaltsAtAnEvent: the route of an event in a gap says halt. The repair waits
// there for the operator's word as the stream does, and goes on when it is given as it
// was printed, though the event has no key.
func TestRepairHaltsAtAnEvent(t *testing.T) {
	t.Parallel()
	for i, mode := range []string{"idempotent", "exactly-once"} {
		t.Run(mode+"/PostgreSQL"+versions[i], func(t *testing.T) {
			t.Parallel()
			w := settled(t, versions[i])
			config := w.config("checkpoint_interval: 50ms", `admin: {listen: "off"}`)
			text, err := os.ReadFile(config)
			require.NoError(t, err)
			require.Contains(t, string(text), routesOf[0])
			halts := strings.Replace(string(text), routesOf[0], `routes: [{topic: "{namespace}.{aggregate_type}", poison: halt}]`, 1)
			require.NoError(t, os.WriteFile(config, []byte(halts), 0o600))
			r := w.newRelay(config, "").inMode(mode)
			r.start()
			eventually(t, "the relay streams", time.Minute, func() bool { return sessions(r) == 1 })
			caughtUp(t, w, r)
			r.stop()
			bad := scalar[string](w, `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload)
				SELECT (substr(o.id::text, 1, 14) || '4' || substr(o.id::text, 16, 20) || '1')::uuid, o.namespace, o.aggregate_type, o.aggregate_id, o.event_type, o.payload
				FROM onceward.outbox o LIMIT 1 RETURNING namespace || ':' || id`)
			behind := writeOne(t, w)
			loseSlot(t, w)
			r.start()
			eventually(t, "the repair halts", time.Minute, func() bool { return r.logs("halted: an operator has to decide") })
			var printed []string
			eventually(t, "it says so in its health", 30*time.Second, func() bool {
				printed = wayOut.FindStringSubmatch(scalar[string](w, `SELECT COALESCE(max(detail), '') FROM onceward.relay_health WHERE state = 'halted'`))
				return printed != nil
			})
			require.Equal(t, "pending", account(t, w)[bad])
			outboxctl(t, w.dsn(operatorLogin), "skip", printed[1], "--reason", "r", "--yes")
			caughtUp(t, w, r)
			eventually(t, "nothing is pending", time.Minute, func() bool { return owed(w) == 0 })
			r.stop()
			require.Equal(t, "discarded", account(t, w)[bad])
			require.Equal(t, 1, w.published()[behind])
		})
	}
}
