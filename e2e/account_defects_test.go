//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAccountCatchesDefects: the statement that TestAccount is about fails for a relay
// that calls published what nobody has proved so.
func TestAccountCatchesDefects(t *testing.T) {
	for i, defect := range []string{"forget-gap", "gap-from-now", "forget-before", "forget-waiting"} {
		t.Run(defect, func(t *testing.T) {
			start := map[string]uint64{"forget-before": 4}[defect] // now
			a := newAccounting(t, "idempotent", uint64(i%2)+start, defect)
			defer a.begin()()
			switch defect {
			case "forget-before":
			case "forget-waiting":
				eventually(t, "events wait", 30*time.Second, func() bool { return scalar[int](a.world, `SELECT count(*) FROM onceward.waiting`) > 0 })
				a.quiet++ // their topics are made at the next quiet moment
			default:
				s := step{lasting: 10 * time.Second} // the relays come back when it settles
				a.nemesis.killRelays(s)
				written := scalar[int](a.world, `SELECT count(*) FROM onceward.outbox`)
				eventually(t, "events that no relay reads", 30*time.Second, func() bool {
					return scalar[int](a.world, `SELECT count(*) FROM onceward.outbox`) > written+20
				})
				require.True(t, a.advanceSlot(s))
			}
			a.settle()
			found := summary(a.found)
			require.Contains(t, found, accountTrue)
			require.Contains(t, found, "is published, and is in no topic")
		})
	}
}
