//go:build e2e

package e2e

import (
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/pgserver"
	"github.com/onceward/onceward/internal/process"
	"github.com/onceward/onceward/outbox"
)

// fillAs is fill with an aggregate type, into a table.
func (f *filledLeaf) fillAs(table, kind string) (sql, key string) {
	id := f.id()
	return "INSERT INTO onceward." + table + ` (id, namespace, aggregate_type, aggregate_id, event_type, payload, seq) OVERRIDING SYSTEM VALUE
		VALUES ('` + id.String() + `', '` + f.w.name + `', '` + kind + `', 'old', 'T', '{}', nextval(pg_get_serial_sequence('onceward.outbox', 'seq')))`, f.w.name + ":" + id.String()
}

// neighbour is another relay of the database, with topics of its own.
type neighbour struct {
	*relayProcess
	name string
}

func newNeighbour(t *testing.T, w *environment, config ...string) neighbour {
	t.Helper()
	name := w.name + "b"
	outboxctl(t, w.dsn(maintainerLogin), "migrate", "up", "--side", "outbox", "--relay", name)
	(&replays{environment: w}).topicOf(name + "." + w.topic())
	path := w.config(append([]string{"checkpoint_interval: 50ms", `admin: {listen: "off"}`}, config...)...)
	return neighbour{w.newRelay(rewritten(t, path, "name: "+w.name, "name: "+name, `topic: "{`, `topic: "`+name+`.{`), "none"), name}
}

// stateFor is the state of an event for a relay.
func stateFor(w *environment, relay, key string) string {
	w.t.Helper()
	return scalar[string](w, `SELECT coalesce((SELECT a.state FROM onceward.outbox o, onceward.account(o.id, o.tx_id, o.seq) a
		WHERE o.namespace || ':' || o.id = $1 AND a.relay = $2), '')`, key, relay)
}

// countIn counts the records of an event in a topic, which may not be there.
func countIn(w *environment, topic, key string) (n int) {
	w.t.Helper()
	topics, err := w.admin.ListTopics()
	require.NoError(w.t, err)
	if _, there := topics[topic]; !there {
		return 0
	}
	for _, m := range w.committed(topic) {
		if headerOf(m, outbox.HeaderKey) == key {
			n++
		}
	}
	return n
}

// seenBy waits until the published snapshots of relays see what is committed now, in
// sessions that began after it was asked.
func seenBy(w *environment, relays ...string) {
	w.t.Helper()
	xid := scalar[string](w, `SELECT pg_current_xact_id()::text`)
	writeOne(w.t, w)
	for _, relay := range relays {
		eventually(w.t, relay+" sees it", time.Minute, func() bool {
			return scalar[bool](w, `SELECT coalesce(bool_or(pg_visible_in_snapshot($1::xid8, p.snapshot)), false)
				AND NOT EXISTS (SELECT FROM onceward.gaps g JOIN onceward.relay_state r USING (slot) WHERE r.relay = $2 AND g.state = 'repairing')
				FROM onceward.published_snapshots p JOIN onceward.relay_state r USING (slot) WHERE r.relay = $2 AND r.publication_catalog <> 'filled'`, xid, relay)
		})
	}
}

// TestAdoptedForEveryRelay: a partition is adopted for one relay. Another one, which
// began after it was attached, knows its events as older than itself, or is about to
// publish them: it is told too, and calls none published that is not.
func TestAdoptedForEveryRelay(t *testing.T) {
	t.Parallel()
	for _, start := range []string{"now", "all"} {
		for _, how := range []string{"partitions adopt", "adopt --by copy"} {
			t.Run(start+"/"+how, func(t *testing.T) { adoptedForEvery(t, settled(t, versions[1]), start, how) })
		}
	}
}

func adoptedForEvery(t *testing.T, w *environment, start, how string) {
	a := w.newRelay(w.config("checkpoint_interval: 50ms", `admin: {listen: "off"}`), "")
	b := newNeighbour(t, w, "outbox: {start: "+start+"}")
	begins(t, w, a)
	f := newFilledLeaf(t, w, 20)
	fill, key := f.fill()
	w.execute(f.create())
	w.execute(fill)
	covered(w, a)
	a.stop()
	w.execute(f.attach())
	args := []string{"partitions", "adopt", f.name}
	if how == "adopt --by copy" { // the relay's database has moved since; the other one begins here
		w.execute(`UPDATE onceward.relay_state SET system_identifier = '1'`)
		args = []string{"adopt", "--by", "copy"}
	}
	plain := b.env
	if start == "all" {
		b.env = append(append([]string{}, plain...), "CRASH_AT=after-gap")
	}
	b.start()
	if start == "all" {
		b.wait(30 * time.Second)
	} else {
		eventually(t, "it streams", 30*time.Second, func() bool { return b.logs("slot taken") })
		seenBy(w, b.name)
	}
	b.env = plain
	outboxctl(t, w.dsn(maintainerLogin), append(args, "--reason", "old shop", "--yes")...)
	if start == "all" {
		b.start()
	}
	a.start()
	seenBy(w, w.name, b.name)
	seenBy(w, w.name, b.name)
	a.stop()
	b.stop()
	for relay, topic := range map[string]string{w.name: w.topic(), b.name: b.name + "." + w.topic()} {
		require.Equal(t, "published", stateFor(w, relay, key))
		require.Equal(t, 1, countIn(w, topic, key))
	}
}

// TestAdoptedWhileItWaits: an event waits for its route, and its partition is detached
// and attached again. The printed command ends it, whether the route is there or not.
func TestAdoptedWhileItWaits(t *testing.T) {
	t.Parallel()
	onVersions(t, func(t *testing.T, version string) {
		r := waitingEnvironment(t, version, "idempotent")
		w := r.environment
		f := newFilledLeaf(t, w, 20)
		w.execute(f.create())
		w.execute(f.attach())
		late, waits := f.fillAs("outbox", "late")
		order, plain := f.fillAs("outbox", "order")
		covered(w, r.relay)
		w.execute(late)
		w.execute(order)
		r.waits(1)
		covered(w, r.relay)
		r.relay.stop()
		w.execute("ALTER TABLE onceward.outbox DETACH PARTITION onceward." + f.name)
		w.execute(f.attach())
		r.relay.start()
		require.Contains(t, r.relay.wait(30*time.Second), "PARTITION_FILLED")
		outboxctl(t, w.dsn(maintainerLogin), "partitions", "adopt", f.name, "--reason", "detached by mistake", "--yes")
		begins(t, w, r.relay)
		seenBy(w, w.name)
		require.Equal(t, "waiting", account(t, w)[waits])
		require.Equal(t, "published", account(t, w)[plain])
		r.topicOf(w.name + ".late")
		eventually(t, "it is out", time.Minute, func() bool { return account(t, w)[waits] == "published" })
		r.relay.stop()
		require.Positive(t, countIn(w, w.name+".late", waits))
		require.Positive(t, countIn(w, w.topic(), plain))
	})
}

// TestAStrangeEventThatWaitsForAnother: an event of a partition that a relay has not
// looked at waits for another relay's route. The first one publishes it.
func TestAStrangeEventThatWaitsForAnother(t *testing.T) {
	t.Parallel()
	w := settled(t, versions[1])
	a := w.newRelay(w.config("checkpoint_interval: 50ms", `admin: {listen: "off"}`), "")
	b := newNeighbour(t, w, "outbox: {start: all}")
	(&replays{environment: w}).topicOf(w.name + ".late")
	begins(t, w, a)
	f := newFilledLeaf(t, w, 20)
	fill, key := f.fillAs(f.name, "late")
	w.execute(f.create())
	w.execute(fill)
	covered(w, a)
	a.stop()
	w.execute(f.attach())
	b.start()
	eventually(t, "it waits", 30*time.Second, func() bool { return stateFor(w, b.name, key) == "waiting" })
	b.stop()
	w.execute(`UPDATE onceward.relay_state SET system_identifier = '1'`)
	outboxctl(t, w.dsn(maintainerLogin), "adopt", "--by", "copy", "--reason", "moved", "--yes")
	a.start()
	b.start()
	seenBy(w, w.name, b.name)
	a.stop()
	b.stop()
	require.Equal(t, "waiting", stateFor(w, b.name, key))
	require.Equal(t, "published", stateFor(w, w.name, key))
	require.Equal(t, 1, countIn(w, w.name+".late", key))
}

// TestUpgradedWithAnIdleRelay: of two relays one has not run since before a partition
// was made; the other one has published what is in it. After pg_upgrade the first
// publishes it, and the second does not again.
func TestUpgradedWithAnIdleRelay(t *testing.T) {
	t.Parallel()
	binaries, err := pgserver.Find(t.Context(), 15)
	require.NoError(t, err)
	w := ownEnvironment(t, "15", nil)
	w.prepareTables()
	a := w.newRelay(w.config("checkpoint_interval: 50ms", `admin: {listen: "off"}`), "")
	begins(t, w, a)
	covered(w, a)
	a.stop()
	key := oldEvent(t, w, 25)
	b := newNeighbour(t, w, "outbox: {start: all}")
	b.inMode("exactly-once")
	b.start()
	seenBy(w, b.name)
	seenBy(w, b.name)
	b.stop()
	eventually(t, "both slots are free", 10*time.Second, func() bool {
		return scalar[bool](w, `SELECT NOT bool_or(active) FROM pg_replication_slots`)
	})
	w.execute(`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots`)
	upgrade(t, w, binaries.Dir)
	require.NotContains(t, outboxctl(t, w.dsn(maintainerLogin), "adopt", "--by", "copy", "--reason", "upgraded", "--yes"), "of partition")
	a.start()
	b.start()
	seenBy(w, w.name, b.name)
	a.stop()
	b.stop()
	require.Equal(t, []int{1, 1}, []int{countIn(w, w.topic(), key), countIn(w, b.name+"."+w.topic(), key)})
}

// TestAdoptGivesWay: a transaction that has written an event stays open. The command
// that waits for it gives up by name, and other producers go on.
func TestAdoptGivesWay(t *testing.T) {
	t.Parallel()
	w := settled(t, versions[1])
	r := startRelay(t, w, "checkpoint_interval: 50ms")
	caughtUp(t, w, r)
	f := newFilledLeaf(t, w, 20)
	fill, _ := f.fill()
	w.execute(f.create())
	w.execute(fill)
	covered(w, r)
	w.execute(f.attach())
	r.wait(30 * time.Second)
	open := w.openEvent("a-77")
	pid := open.Conn().PgConn().PID()
	out, err := process.Run(t.Context(), process.Spec{
		Path: outboxctlBinary(t), Args: []string{"partitions", "adopt", f.name, "--reason", "x", "--yes"},
		Env: []string{"OUTBOXCTL_DSN=" + w.dsn(maintainerLogin), "OUTBOXCTL_INSECURE=true"},
	})
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Regexp(t, `stays open \(pid `+strconv.FormatUint(uint64(pid), 10)+`\)`, out)
	require.NoError(t, pgx.BeginFunc(t.Context(), w.app, func(tx pgx.Tx) error {
		_, err := outbox.Enqueue(t.Context(), tx, event(t, w))
		return err
	}))
	require.NoError(t, open.Rollback(t.Context()))
	outboxctl(t, w.dsn(maintainerLogin), "partitions", "adopt", f.name, "--reason", "x", "--yes")
}
