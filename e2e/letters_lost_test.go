//go:build e2e

package e2e

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/kafkaproxy"
	"github.com/onceward/onceward/internal/loopback"
	"github.com/onceward/onceward/internal/pgserver"
)

// TestWaitingLostByAPromotion: a standby has an event, and the relay's slot, but not the row
// by which the relay wrote down that the event waits for its route; then it is
// promoted. The checkpoint in Kafka is beyond the event. The relay stops with LETTERS_LOST, the
// event is of the gap and called nothing else, and repaired it waits again, and goes
// out once its topic is there.
func TestWaitingLostByAPromotion(t *testing.T) {
	t.Parallel()
	servers := &succession{t: t}
	t.Cleanup(servers.end) // after the environment, whose server the standby becomes
	primary := servers.start("", nil)
	w := newEnvironmentOn(t, primary)
	w.prepareTables()
	const fast, slow = "checkpoint_interval: 100ms", "checkpoint_interval: 1m" // of which no marker comes in between
	r := w.newRelay(w.config(fast, `admin: {listen: "off"}`), "none").inMode("exactly-once")
	r.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return sessions(r) == 1 })
	standby, link := servers.follow(w)
	onStandby, err := pgx.Connect(t.Context(), standby.DSN(w.name))
	require.NoError(t, err)
	defer onStandby.Close(context.WithoutCancel(t.Context()))
	has := func(question string, args ...any) (yes bool) {
		require.NoError(t, onStandby.QueryRow(t.Context(), question, args...).Scan(&yes))
		return yes
	}
	eventually(t, "the standby has the slot", 2*time.Minute, func() bool {
		writeOne(t, w)
		w.execute(`SELECT pg_log_standby_snapshot()`)
		return has(`SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1 AND synced AND NOT temporary)`, w.slot())
	})
	caughtUp(t, w, r)
	r.stop()

	r.pointTo(slow, `admin: {listen: "off"}`)
	r.env = append(r.env, "ONCEWARD_TOPICS_CREATE=false")
	plain := slices.Clone(r.env)
	r.env = append(r.env, "CRASH_AT=after-txn-commit")
	r.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return sessions(r) == 2 })
	lock, err := w.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = lock.Exec(t.Context(), `LOCK onceward.waiting IN SHARE MODE`)
	require.NoError(t, err)
	key := (&replays{environment: w}).enqueue("late", "a", []byte("{}"))
	eventually(t, "the relay writes down that it waits", 30*time.Second, func() bool {
		return scalar[bool](w, `SELECT EXISTS (SELECT FROM pg_locks l WHERE l.relation = 'onceward.waiting'::regclass AND NOT l.granted)`)
	})
	end := scalar[string](w, `SELECT pg_current_wal_insert_lsn()::text`)
	eventually(t, "the standby has the event", 30*time.Second, func() bool { return has(`SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn`, end) })
	link.Refuse(true)
	link.Cut()
	require.NoError(t, lock.Rollback(t.Context()))
	r.wait(30 * time.Second) // Kafka knows of it
	require.Equal(t, 1, scalar[int](w, `SELECT count(*) FROM onceward.waiting`))
	require.NoError(t, primary.Halt(t.Context(), pgserver.Immediate))
	w.moveTo(standby)
	require.True(t, scalar[bool](w, `SELECT pg_promote()`))
	require.Zero(t, scalar[int](w, `SELECT count(*) FROM onceward.waiting`), "it lacks it")

	r.pointTo(fast, `admin: {listen: "off"}`, "gap: ask")
	r.env = plain
	r.start()
	require.Contains(t, r.wait(time.Minute), "LETTERS_LOST: ")
	require.Equal(t, "gap", account(t, w)[key])
	outboxctl(t, w.dsn(operatorLogin), "gap", "repair", scalar[string](w, `SELECT gap_id::text FROM onceward.gaps WHERE state = 'open'`), "--reason", "r", "--yes")
	r.start()
	eventually(t, "it waits again", time.Minute, func() bool { return scalar[int](w, `SELECT count(*) FROM onceward.waiting`) == 1 })
	require.Equal(t, "waiting", account(t, w)[key])
	late := &replays{environment: w}
	late.makeTopic(w.name+".late", nil)
	late.arrives(w.name+".late", key)
	eventually(t, "nothing is pending, and nothing waits", time.Minute, func() bool {
		return owed(w) == 0 && scalar[int](w, `SELECT count(*) FROM onceward.waiting`) == 0
	})
	r.stop()
	require.Equal(t, []string{key}, late.keys(w.name+".late", "a"), "once")
	require.Equal(t, "published", account(t, w)[key])
}

// succession are servers of which one takes the place of another.
type succession struct {
	t       *testing.T
	servers []*pgserver.Server
	dirs    []string
}

func (s *succession) start(dir string, settings map[string]string) *pgserver.Server {
	s.t.Helper()
	server, err := pgserver.Start(s.t.Context(), pgserver.Options{Version: "18", Dir: dir, Settings: settings})
	require.NoError(s.t, err)
	s.servers = append(s.servers, server)
	return server
}

// follow makes a standby of the environment's server, which takes its slots over, and the link
// between them.
func (s *succession) follow(w *environment) (*pgserver.Server, *kafkaproxy.Link) {
	s.t.Helper()
	w.execute(`SELECT pg_create_physical_replication_slot($1, true)`, physicalSlot)
	dir := standbyDir(s.t)
	s.dirs = append(s.dirs, dir)
	frozen(s.t, w.server, func() { copied(s.t, w.server.Dir()+"/.", dir) })
	network := kafkaproxy.New()
	s.t.Cleanup(func() { require.NoError(s.t, network.Close()) })
	link, err := network.AddPlain(s.t.Context(), loopback.Address(w.server.Port()))
	require.NoError(s.t, err)
	return s.start(asStandby(s.t, dir), map[string]string{
		"primary_conninfo": conninfo(s.t, w.server, link) + " dbname=" + w.name, "primary_slot_name": physicalSlot, "hot_standby_feedback": "on", "sync_replication_slots": "on",
	}), link
}

func (s *succession) end() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, server := range s.servers {
		require.NoError(s.t, server.Stop(ctx))
	}
	for _, dir := range s.dirs {
		require.NoError(s.t, os.RemoveAll(dir))
	}
}
