//go:build e2e

package retention

import (
	"context"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/internal/pgserver"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
)

// oldOutbox is an outbox with a partition for ten days ago, looked after by a
// maintainer who is no superuser.
type oldOutbox struct {
	t     *testing.T
	dsn   string
	owner *pgx.Conn // the superuser: what the test arranges
	conn  *pgx.Conn // the maintainer
	leaf  string    // of ten days ago
	day   time.Time
}

var outboxes atomic.Int64

func TestRetention(t *testing.T) {
	for _, version := range []string{"15", "18"} {
		t.Run("PostgreSQL"+version, func(t *testing.T) {
			server := testdb.Server(t, pgserver.Options{Version: version})
			for _, tc := range []struct {
				name string
				test func(*oldOutbox)
			}{
				{"a leaf lives until it may go", lifeOfALeaf},
				{"each relay is asked, here and now", eachRelayIsAsked},
				{"an open writer is waited for", openWriter},
				{"gaps block", gapsBlock},
				{"what was given up goes", acceptedGoes},
				{"what was given up is ordered again", orderedAgain},
				{"an old snapshot meets a closed leaf", oldSnapshot},
				{"a detach that is interrupted goes on", interruptedDetach},
				{"a leaf detached by hand", detachedByHand},
				{"a leaf that waits outside comes back", comesBack},
				{"an open leaf is never detached", openLeafPending},
				{"one maintainer at a time", oneMaintainer},
				{"a closing without its comment", lostComment},
				{"premake", premake},
				{"the schema of the release before", olderSchema},
				{"somebody alters the table", lockedRoot},
			} {
				t.Run(tc.name, func(t *testing.T) { tc.test(newOldOutbox(t, server)) })
			}
		})
	}
}

func newOldOutbox(t *testing.T, server *pgserver.Server) *oldOutbox {
	name := fmt.Sprintf("retention_%d", outboxes.Add(1))
	admin := dial(t, server.DSN("postgres"))
	_, err := admin.Exec(t.Context(), "CREATE DATABASE "+name)
	require.NoError(t, err)
	o := &oldOutbox{t: t, dsn: server.DSN(name), owner: dial(t, server.DSN(name))}
	roles, err := migrations.NewRoles(migrations.Outbox, migrations.DefaultPrefix)
	require.NoError(t, err)
	require.NoError(t, roles.Apply(t.Context(), o.owner))
	o.exec("ALTER ROLE onceward_maintainer LOGIN PASSWORD 'secret'; ALTER ROLE onceward_writer LOGIN PASSWORD 'secret'; ALTER ROLE onceward_operator LOGIN PASSWORD 'secret'")
	pool, err := pgxpool.New(t.Context(), o.as("onceward_maintainer"))
	require.NoError(t, err)
	defer pool.Close()
	m, err := migrations.New(migrations.Config{Pool: pool, Side: migrations.Outbox})
	require.NoError(t, err)
	_, err = m.Up(t.Context())
	require.NoError(t, err)
	o.conn = dial(t, o.as("onceward_maintainer"))
	o.day = partition.Day(time.Now()).AddDate(0, 0, -10)
	made, err := partition.Ensure(t.Context(), o.conn, outboxTable, "id", partition.Span{First: o.day, Last: o.day, Reopen: true})
	require.NoError(t, err)
	o.leaf = made[0]
	return o
}

func dial(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func (o *oldOutbox) as(role string) string {
	u, err := url.Parse(o.dsn)
	require.NoError(o.t, err)
	u.User = url.UserPassword(role, "secret")
	return u.String()
}

func (o *oldOutbox) exec(sql string, args ...any) {
	o.t.Helper()
	_, err := o.owner.Exec(o.t.Context(), sql, args...)
	require.NoError(o.t, err, sql)
}

func (o *oldOutbox) text(sql string, args ...any) string {
	o.t.Helper()
	var s string
	require.NoError(o.t, o.owner.QueryRow(o.t.Context(), sql, args...).Scan(&s), sql)
	return s
}

// maintain runs once and returns what became of the old leaf.
func (o *oldOutbox) maintain(change ...func(*Config)) LeafReport {
	o.t.Helper()
	cfg := Config{LockTimeout: 200 * time.Millisecond}
	for _, f := range change {
		f(&cfg)
	}
	report, err := Maintain(o.t.Context(), o.conn, cfg)
	require.NoError(o.t, err)
	for _, l := range report.Leaves {
		if l.Name == o.leaf {
			return l
		}
	}
	return LeafReport{}
}

func (o *oldOutbox) became(state LeafState, why string, change ...func(*Config)) {
	o.t.Helper()
	l := o.maintain(change...)
	require.Equal(o.t, state, l.State, l.Why)
	require.Contains(o.t, l.Why, why)
}

// event is one whose key has the time of ten days ago.
func (o *oldOutbox) event(n int) outbox.Event {
	id := outbox.FirstID(o.day.Add(time.Duration(n) * time.Second))
	id[6], id[8], id[15] = 0x70, 0x80, byte(n)
	key, err := outbox.ParseKeyAt("orders:"+id.String(), time.Now(), outbox.DefaultKeySkew)
	require.NoError(o.t, err)
	return outbox.Event{Key: key, AggregateType: "order", AggregateID: "A", Type: "Paid", Payload: []byte("{}")}
}

// enqueue commits one old event as a writer.
func (o *oldOutbox) enqueue(n int) error {
	o.t.Helper()
	writer := dial(o.t, o.as("onceward_writer"))
	return pgx.BeginFunc(o.t.Context(), writer, func(tx pgx.Tx) error {
		_, err := outbox.Enqueue(o.t.Context(), tx, o.event(n))
		return err
	})
}

func (o *oldOutbox) relay(name, snapshot string) {
	o.t.Helper()
	o.exec(`INSERT INTO onceward.relay_state (slot, relay, database, system_identifier, timeline, confirmed_lsn, publication)
		VALUES ($1, $1, current_database(), (SELECT system_identifier::text FROM pg_control_system()), 1, '0/1', 'p') ON CONFLICT DO NOTHING`, name)
	if snapshot != "" {
		o.exec(`INSERT INTO onceward.published_snapshots VALUES ($1, $2::pg_snapshot, now())
			ON CONFLICT (slot) DO UPDATE SET snapshot = excluded.snapshot`, name, snapshot)
	}
}

func (o *oldOutbox) now() string { return o.text("SELECT pg_current_snapshot()::text") }

func (o *oldOutbox) exists() bool {
	return o.text("SELECT (to_regclass('onceward.'||$1) IS NOT NULL)::text", o.leaf) == "true"
}

func lifeOfALeaf(o *oldOutbox) {
	t := o.t
	require.NoError(t, o.enqueue(1))
	o.became(LeafOpen, "would be closed", func(c *Config) { c.DryRun = true })
	require.NoError(t, o.enqueue(2), "a dry run closes nothing")
	o.became(LeafOpen, "", func(c *Config) { c.Keep = 10 })
	require.NoError(t, o.enqueue(3), "ten days are kept")
	o.became(LeafWaiting, "no relay is known here: none has begun yet, or all were retired")
	err := o.enqueue(4)
	require.ErrorIs(t, err, outbox.ErrOutOfWindow)
	require.ErrorContains(t, err, "is closed")
	_, err = o.owner.Exec(t.Context(), "SET session_replication_role = replica; INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type) VALUES ('"+
		o.event(5).Key.UUID().String()+"', 'n', 't', 'a', 'e')")
	require.ErrorContains(t, err, "is closed", "the trigger is ENABLE ALWAYS")
	o.exec("RESET session_replication_role")

	o.relay("orders", o.now())
	o.exec(`INSERT INTO onceward.dead_letters (slot, letter_id, namespace, aggregate_type, aggregate_id, event_type, content_type, created_at, tx_id, seq, position, error_class, error)
		VALUES ('orders', $1, 'orders', 'order', 'A', 'Paid', 't', now(), '1', 1, '0/1', 'c', 'e')`, o.event(2).Key.UUID())
	o.became(LeafWaiting, "1 of its events is an open dead letter")
	o.exec("UPDATE onceward.dead_letters SET state = 'retrying'")
	o.became(LeafWaiting, "1 of its events is an open dead letter")
	o.exec("UPDATE onceward.dead_letters SET state = 'discarded'")
	o.became(LeafClosed, "would be dropped", func(c *Config) { c.DryRun = true })
	require.True(t, o.exists())
	o.became(LeafDropped, "")
	require.False(t, o.exists())
	require.Equal(t, "22", o.text("SELECT count(*)::text FROM pg_inherits WHERE inhparent = 'onceward.outbox'::regclass"))
	require.Equal(t, LeafReport{}, o.maintain(), "and it never comes back")
	require.ErrorIs(t, o.enqueue(1), outbox.ErrOutOfWindow)
}

func eachRelayIsAsked(o *oldOutbox) {
	require.NoError(o.t, o.enqueue(1))
	early := o.now()
	o.relay("a", "")
	o.relay("b", early)
	l := o.maintain()
	require.Regexp(o.t, "waits for relay a: it has no published snapshot yet; its slot .*; waits for relay b: its published snapshot is older than the closing", l.Why)
	require.Contains(o.t, l.Why, "if this relay is gone for good, outboxctl retire --slot a --reason")
	o.relay("a", o.now())
	o.became(LeafWaiting, "waits for relay b: its published snapshot is older than the closing")
	// A snapshot after the closing for which the row's transaction is open: what a
	// forged tx_id, or one of a restored row, would look like.
	xid := o.text("SELECT tx_id::text FROM onceward.outbox WHERE id = $1", o.event(1).Key.UUID())
	o.relay("b", o.text("SELECT $1 || ':' || pg_snapshot_xmax(pg_current_snapshot()) || ':' || $1", xid))
	o.became(LeafWaiting, "waits for relay b: 1 row is not published yet")
	o.relay("b", o.now())
	o.exec("UPDATE onceward.relay_state SET system_identifier = '1' WHERE slot = 'a'")
	o.became(LeafWaiting, "the state of relay a was written on another cluster, whose transactions mean nothing here: outboxctl adopt --by copy --reason")
	o.exec("UPDATE onceward.relay_state SET system_identifier = (SELECT system_identifier::text FROM pg_control_system())")
	o.became(LeafDropped, "")
}

// gapsBlock: rows of a gap wait for a decision, rows that are older than the relay
// for a word that they may go, which is written down.
func gapsBlock(o *oldOutbox) {
	t := o.t
	require.NoError(t, o.enqueue(1))
	require.NoError(t, o.enqueue(2))
	o.maintain() // closes it
	o.relay("orders", o.now())
	o.exec(`INSERT INTO onceward.gaps (gap_id, slot, cause, detail, from_snapshot, to_snapshot, events, state)
		SELECT gen_random_uuid(), 'orders', 'SLOT_MISSING', '', '1:1:', pg_current_snapshot(), 2, 'open'`)
	o.became(LeafWaiting, "2 rows are of a gap of relay orders: outboxctl gap show "+o.text("SELECT gap_id::text FROM onceward.gaps"))
	o.exec("UPDATE onceward.gaps SET state = 'repairing', cursor = 1")
	o.became(LeafWaiting, "waits for relay orders: 1 row is not published yet")
	o.exec("UPDATE onceward.gaps SET state = 'before', cursor = 0")
	o.became(LeafWaiting, "2 rows are older than relay orders, which never published them")
	o.became(LeafWaiting, "--drop-before --reason", func(c *Config) { c.DryRun = true })
	o.became(LeafClosed, "2 rows are older than relay orders, which never published them; every other row is published; would be dropped",
		func(c *Config) { c.DropBefore, c.DryRun = "not needed", true })
	o.became(LeafDropped, "2 rows are older than relay orders, which never published them, and went with it", func(c *Config) { c.DropBefore = "not needed" })
	require.Equal(t, "drop before orders "+o.leaf+": 2 events not needed", o.text("SELECT concat_ws(' ', action, slot, target, reason) FROM onceward.relay_actions"))
}

func openWriter(o *oldOutbox) {
	t := o.t
	o.relay("orders", o.now())
	writer := dial(t, o.as("onceward_writer"))
	tx, err := writer.Begin(t.Context())
	require.NoError(t, err)
	_, err = outbox.Enqueue(t.Context(), tx, o.event(1))
	require.NoError(t, err)
	o.became(LeafOpen, fmt.Sprintf("a transaction that wrote to it is open (pid %d)", writer.PgConn().PID()))
	require.NoError(t, o.enqueue(2), "a closing that gave up leaves nothing behind")
	_, err = outbox.Enqueue(t.Context(), tx, o.event(3))
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))

	today, err := writer.Begin(t.Context())
	require.NoError(t, err)
	key, err := outbox.NewKey("orders")
	require.NoError(t, err)
	_, err = outbox.Enqueue(t.Context(), today, outbox.Event{Key: key, AggregateType: "order", AggregateID: "A", Type: "Paid"})
	require.NoError(t, err)
	o.became(LeafWaiting, "older than the closing") // a writer of another day is not waited for
	require.NoError(t, today.Rollback(t.Context()))
	o.relay("orders", o.now())
	o.became(LeafDropped, "")
}

// A writer whose REPEATABLE READ snapshot is older than the closing, and one
// whose snapshot is older than the detach, are both refused.
func oldSnapshot(o *oldOutbox) {
	t := o.t
	old := func() pgx.Tx {
		tx, err := dial(t, o.dsn).BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), "SELECT count(*) FROM onceward.outbox") // takes the snapshot, locks the root
		require.NoError(t, err)
		return tx
	}
	beforeClosing := old()
	// It has locked the leaf for reading only, so the leaf can be closed.
	o.became(LeafWaiting, "no relay")
	_, err := outbox.Enqueue(t.Context(), beforeClosing, o.event(1))
	require.ErrorIs(t, err, outbox.ErrOutOfWindow)
	require.NoError(t, beforeClosing.Rollback(t.Context()))

	o.relay("orders", o.now())
	beforeDetach := old()
	o.became(LeafDetaching, "waits for transactions that are older than the detach")
	require.Equal(t, "true", o.text("SELECT inhdetachpending::text FROM pg_inherits WHERE inhrelid = ('onceward.'||$1)::regclass", o.leaf))
	_, err = outbox.Enqueue(t.Context(), beforeDetach, o.event(2))
	require.ErrorIs(t, err, outbox.ErrOutOfWindow, "this snapshot sees the leaf still attached")
	require.ErrorContains(t, err, "is closed")
	require.ErrorIs(t, o.enqueue(3), outbox.ErrOutOfWindow, "and a new one does not")
	require.NoError(t, beforeDetach.Rollback(t.Context()))
	o.became(LeafDropped, "")
}

// Cut off in the middle, by losing the connection, a run is taken up by the next.
func interruptedDetach(o *oldOutbox) {
	t := o.t
	require.NoError(t, o.enqueue(1))
	o.maintain()
	o.relay("orders", o.now())
	reader, err := dial(t, o.dsn).Begin(t.Context())
	require.NoError(t, err)
	_, err = reader.Exec(t.Context(), "SELECT FROM onceward.outbox")
	require.NoError(t, err)
	cut, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = Maintain(cut, o.conn, Config{LockTimeout: time.Minute})
	require.Error(t, err)
	o.conn = dial(t, o.as("onceward_maintainer"))
	require.Eventually(t, func() bool { return o.text("SELECT count(*)::text FROM pg_locks WHERE locktype = 'advisory'") == "0" }, 10*time.Second, 10*time.Millisecond)
	o.became(LeafDetaching, "older than the detach")

	other := o.day.AddDate(0, 0, -1)
	made, err := partition.Ensure(t.Context(), o.conn, outboxTable, "id", partition.Span{First: other, Last: other, Reopen: true})
	require.NoError(t, err, "partitions are made while a detach is pending")
	first := o.leaf
	o.leaf = made[0]
	o.maintain()
	o.relay("orders", o.now())
	o.became(LeafClosed, "waits for the detach of "+first)
	require.NoError(t, reader.Rollback(t.Context()))
	o.became(LeafDropped, "")
	o.leaf = first
	require.False(t, o.exists())
}

func openLeafPending(o *oldOutbox) {
	t := o.t
	require.NoError(t, o.enqueue(1))
	o.relay("orders", o.now())
	reader, err := dial(t, o.dsn).Begin(t.Context())
	require.NoError(t, err)
	_, err = reader.Exec(t.Context(), "SELECT FROM onceward.outbox")
	require.NoError(t, err)
	hand := dial(t, o.dsn)
	_, err = hand.Exec(t.Context(), "SET lock_timeout = '100ms'")
	require.NoError(t, err)
	_, err = hand.Exec(t.Context(), "ALTER TABLE onceward.outbox DETACH PARTITION onceward."+o.leaf+" CONCURRENTLY")
	require.ErrorContains(t, err, "lock timeout")
	l := o.maintain()
	require.Equal(t, LeafDetaching, l.State)
	require.True(t, l.Wrong)
	require.Contains(t, l.Why, "while it was open")
	require.Contains(t, l.Why, fmt.Sprintf("which waits for who reads it (pid %d) and for transactions that are older, compare", reader.Conn().PgConn().PID()))
	require.True(t, o.exists())
	cure := regexp.MustCompile(`SET .* FINALIZE`).FindString(l.Why)
	_, err = o.conn.Exec(t.Context(), cure)
	require.ErrorContains(t, err, "lock timeout", "it gives up, and lets those go on who look at the partitions")
	require.NoError(t, reader.Rollback(t.Context()))
	_, err = o.conn.Exec(t.Context(), cure)
	require.NoError(t, err)
	require.Equal(t, LeafReport{}, o.maintain(), "it is out")
}

func oneMaintainer(o *oldOutbox) {
	t := o.t
	other := dial(t, o.dsn)
	_, err := other.Exec(t.Context(), "SELECT pg_advisory_lock($1)", maintainLock)
	require.NoError(t, err)
	_, err = Maintain(t.Context(), o.conn, Config{})
	require.ErrorIs(t, err, ErrMaintained)
	_, err = Maintain(t.Context(), o.conn, Config{DryRun: true})
	require.NoError(t, err, "looking is always possible")
	require.NoError(t, other.Close(t.Context()))
	require.Eventually(t, func() bool { _, err := Maintain(t.Context(), o.conn, Config{}); return err == nil }, 10*time.Second, 10*time.Millisecond)
	var timeout string
	require.NoError(t, o.conn.QueryRow(t.Context(), "SHOW lock_timeout").Scan(&timeout))
	require.Equal(t, "0", timeout, "the session is given back as it was")

	writer := dial(t, o.as("onceward_writer"))
	_, err = writer.Exec(t.Context(), "SELECT pg_advisory_lock($1)", maintainLock)
	require.NoError(t, err)
	_, err = Maintain(t.Context(), o.conn, Config{})
	require.NotErrorIs(t, err, ErrMaintained, "a writer maintains nothing, though it can take the lock")
	require.ErrorContains(t, err, `role "onceward_writer" (PID `)
	require.ErrorContains(t, err, "SELECT pg_catalog.pg_terminate_backend(")
	_, err = writer.Exec(t.Context(), "SELECT pg_advisory_unlock_all()")
	require.NoError(t, err)
	_, err = Maintain(t.Context(), writer, Config{})
	var pg *pgconn.PgError
	require.ErrorAs(t, err, &pg)
	require.Equal(t, "42501", pg.Code, "a writer is no maintainer")
}

// A dump may lose comments. Then the closing is dated anew, later than it was.
func lostComment(o *oldOutbox) {
	o.maintain()
	o.relay("orders", o.now())
	o.exec("COMMENT ON TRIGGER onceward_closed ON onceward." + o.leaf + " IS NULL")
	o.became(LeafWaiting, "older than the closing")
	o.relay("orders", o.now())
	o.exec("ALTER TABLE onceward." + o.leaf + " DISABLE TRIGGER onceward_closed")
	require.NoError(o.t, o.enqueue(1))
	o.became(LeafWaiting, "older than the closing")
	require.ErrorIs(o.t, o.enqueue(2), outbox.ErrOutOfWindow)
}

// A schema of the release before has no function for closing: the days ahead are
// made all the same.
func olderSchema(o *oldOutbox) {
	o.exec("DROP FUNCTION onceward.refuse_insert()")
	report, err := Maintain(o.t.Context(), o.conn, Config{Ahead: 15})
	require.ErrorContains(o.t, err, "run `outboxctl migrate up --side outbox`")
	require.Len(o.t, report.Made, 1)
	require.Equal(o.t, 15, report.Ahead)
}

func lockedRoot(o *oldOutbox) {
	tx, err := dial(o.t, o.dsn).Begin(o.t.Context())
	require.NoError(o.t, err)
	_, err = tx.Exec(o.t.Context(), "LOCK TABLE ONLY onceward.outbox IN SHARE UPDATE EXCLUSIVE MODE")
	require.NoError(o.t, err)
	o.became(LeafWaiting, "no relay", func(c *Config) { c.Ahead = 20 })
	ahead, _, err := Ahead(o.t.Context(), o.conn)
	require.NoError(o.t, err)
	require.Equal(o.t, 14, ahead)
	o.relay("orders", o.now())
	o.became(LeafDetaching, "waits for")
	require.NoError(o.t, tx.Rollback(o.t.Context()))
	o.became(LeafDropped, "", func(c *Config) { c.Ahead = 20 })
}

func premake(o *oldOutbox) {
	t := o.t
	ahead, _, err := Ahead(t.Context(), o.conn)
	require.NoError(t, err)
	require.Equal(t, 14, ahead)
	report, err := Maintain(t.Context(), o.conn, Config{Ahead: 16, DryRun: true})
	require.NoError(t, err)
	require.Len(t, report.Made, 2)
	require.Equal(t, 14, report.Ahead)
	report, err = Maintain(t.Context(), o.conn, Config{Ahead: 16})
	require.NoError(t, err)
	require.Len(t, report.Made, 2)
	require.Equal(t, 16, report.Ahead)
	report, err = Maintain(t.Context(), o.conn, Config{Ahead: 16, Keep: 12})
	require.NoError(t, err)
	require.Empty(t, report.Made, "between a day that is kept and those of before may be what was dropped")
	require.Equal(t, "onceward_owner", o.text("SELECT string_agg(DISTINCT pg_get_userbyid(relowner), ',') FROM pg_class WHERE relname LIKE 'outbox_2%'"))
	young := time.Now().UTC().Format("outbox_20060102")
	o.exec(strings.ReplaceAll("CREATE TRIGGER onceward_closed BEFORE INSERT ON onceward.LEAF FOR EACH ROW EXECUTE FUNCTION onceward.refuse_insert(); ALTER TABLE onceward.LEAF ENABLE ALWAYS TRIGGER onceward_closed", "LEAF", young))
	o.leaf = young
	l := o.maintain()
	require.True(t, l.Wrong)
	require.Contains(t, l.Why, "DROP TRIGGER onceward_closed ON")
}
