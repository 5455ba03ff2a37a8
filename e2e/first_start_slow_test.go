//go:build e2e

package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// TestFirstStartBesideSlowCommits: commits wait for a synchronous standby, again and
// again, before the slot is made, while it is, and while the relay waits for its
// beginning: they are in the log already, and visible later than a snapshot that is
// taken meanwhile. None of them is missing, and none is called published before it is.
func TestFirstStartBesideSlowCommits(t *testing.T) {
	t.Parallel()
	for i, start := range []string{"all", "now"} {
		t.Run(start+"/PostgreSQL"+versions[i], func(t *testing.T) {
			w := ownEnvironment(t, versions[i], nil)
			w.prepareTables()
			writeOne(t, w)
			load := produce(w, 3)
			load.atLeast(50)
			slow := slowCommits(t, w)
			slow.wait()
			r := w.newRelay(w.config("checkpoint_interval: 100ms", `admin: {listen: "off"}`, "outbox: {start: "+start+"}"), "")
			r.start()
			eventually(t, "what is waited for is named", 30*time.Second, func() bool { return r.logs("the replication slot waits for transactions") })
			waits := 1
			for ; !r.logs("slot taken") || waits < 10; waits++ {
				require.Less(t, waits, 1000, "the relay streams")
				slow.release()
				load.atLeast(1)
				slow.wait()
			}
			slow.release()
			load.atLeast(50)
			load.stop()
			caughtUp(t, w, r)
			eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
			r.stop()
			states, copies := requireTrue(t, w)
			all := scalar[int](w, `SELECT count(*) FROM onceward.outbox`)
			require.Zero(t, copies)
			require.Equal(t, all, states["published"]+states["before"])
			if start == "all" {
				require.Zero(t, states["before"])
			}
			t.Logf("%d events, of them %d before; commits waited %d times; 0 missing, 0 copies", all, states["before"], waits)
		})
	}
}

// slow lets commits of the server wait for a standby that never comes.
type slow struct {
	w    *environment
	conn *pgx.Conn // its own statements wait for nobody
}

func slowCommits(t *testing.T, w *environment) *slow {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), w.server.DSN("postgres"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	s := &slow{w, conn}
	s.run("SET synchronous_commit = local")
	return s
}

func (s *slow) run(sql string) {
	s.w.t.Helper()
	_, err := s.conn.Exec(s.w.t.Context(), sql)
	require.NoError(s.w.t, err, sql)
}

// wait has commits wait, and returns when one does.
func (s *slow) wait() {
	s.w.t.Helper()
	s.run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
	s.run("SELECT pg_reload_conf()")
	eventually(s.w.t, "a commit waits", 30*time.Second, func() bool {
		return scalar[int](s.w, `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND usename = $1`, appLogin) > 0
	})
}

func (s *slow) release() {
	s.w.t.Helper()
	s.run("ALTER SYSTEM RESET synchronous_standby_names")
	s.run("SELECT pg_reload_conf()")
}
