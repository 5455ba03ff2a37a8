//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRowSecurityWhileItStreams: row-level security is switched on by hand, without the
// policies that our command makes, under a relay that streams. It never takes what
// it cannot see for nothing: a table that it asks stops it by name, and of the outbox, whose
// events come by the log, all is published still; the printed cure lets it go on.
func TestRowSecurityWhileItStreams(t *testing.T) {
	for i, mode := range []string{"idempotent", "exactly-once"} {
		t.Run(mode+"/PostgreSQL"+versions[i], func(t *testing.T) {
			w := settled(t, versions[i])
			r := w.newRelay(w.config("checkpoint_interval: 50ms", `admin: {listen: "off"}`), "").inMode(mode)
			starts := 0
			begin := func() {
				r.start()
				starts++
				eventually(t, "the relay streams", time.Minute, func() bool { return sessions(r) >= starts })
			}
			for _, table := range []string{"relay_state", "outbox", "published_snapshots", "dead_letters", "waiting", "gaps"} {
				begin()
				caughtUp(t, w, r)
				w.execute("ALTER TABLE onceward." + table + " ENABLE ROW LEVEL SECURITY")
				began := time.Now()
				writeOne(t, w)
				ended := "streams on"
				select {
				case <-r.process.Done():
					ended = "stops"
				case <-time.After(10 * time.Second):
				}
				t.Logf("%s: %s after %s", table, ended, time.Since(began).Round(time.Millisecond))
				w.execute("ALTER TABLE onceward." + table + " DISABLE ROW LEVEL SECURITY")
				if ended == "stops" {
					require.Contains(t, r.log(), "ROW_SECURITY: ")
					begin()
				}
				caughtUp(t, w, r)
				eventually(t, "nothing is pending", time.Minute, func() bool { return owed(w) == 0 })
				r.stop()
				states, _ := requireTrue(t, w)
				require.Equal(t, map[string]int{"published": scalar[int](w, `SELECT count(*) FROM onceward.outbox`)}, states)
			}
		})
	}
}
