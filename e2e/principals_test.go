//go:build e2e

package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/migrations"
)

// The principals of TestPrincipals: logins, each for one role. The first six are of
// the database; the others of another one of the same cluster, with a prefix of its own.
const (
	writer     = "writer"
	bound      = "shop" // a producer that is bound to the namespace of its name
	operator   = "operator"
	relayRole  = migrations.DefaultPrefix + "_relay"
	maintainer = "maintainer"
	nobody     = "nobody" // a login without any rights

	otherWriter   = "other_writer"
	otherOperator = "other_operator"
	otherRelay    = "other_relay"
)

// try is one statement of one principal: what it says in a transaction of its
// own, which is rolled back.
type try struct {
	sql  string
	want string // SQLSTATE; empty: it succeeds
	rows string // the tag of a success, e.g. SELECT 2; empty: any
}

func no(statements ...string) (out []try) { return all("42501", statements) }

func yes(statements ...string) (out []try) { return all("", statements) }

func all(want string, statements []string) (out []try) {
	for _, sql := range statements {
		out = append(out, try{sql: sql, want: want})
	}
	return out
}

const (
	insertEvent  = "INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload) VALUES ('{id}', "
	insertReplay = "INSERT INTO onceward.replays (replay_id, id, reason) VALUES ('{id}', "
	aLetter      = "INSERT INTO onceward.dead_letters (slot, letter_id, namespace, aggregate_type, aggregate_id, event_type, content_type, created_at, tx_id, seq, position, error_class, error) " +
		"VALUES ('s', '{id}', 'n', 't', 'a', 'e', 'c', now(), '5', 1, '0/1', 'c', 'e')"
	aGap = "INSERT INTO onceward.gaps (gap_id, slot, cause, detail, from_snapshot, to_snapshot, events, state) " +
		"VALUES ('{id}', 's', 'SLOT_MISSING', 'd', pg_current_snapshot(), pg_current_snapshot(), 1, 'open')"
	askRepair = "SELECT onceward.decide_gap('{gap}', 'open', 'repairing', 'r')"
	askRetire = "SELECT onceward.retire_relay('s', 'r')"
	askRest   = "SELECT onceward.rest_relay('s', true, '{}', 'r')"
	stateOf   = "INSERT INTO onceward.relay_state (slot, relay, database, system_identifier, timeline, confirmed_lsn, publication) VALUES ('mine', 'r', 'd', '1', 1, '0/1', 'p')"
)

// notTheOwners is what nobody but the owner of the schema may.
var notTheOwners = no(
	"UPDATE onceward.outbox SET payload = NULL", "DELETE FROM onceward.outbox", "TRUNCATE onceward.outbox", "LOCK TABLE onceward.outbox",
	"UPDATE onceward.outbox SET tx_id = '5'", "DELETE FROM onceward.replays", "UPDATE onceward.replays SET payload = 'x'", "DELETE FROM onceward.controls",
	"DELETE FROM onceward.dead_letters", "TRUNCATE onceward.dead_letters", "TRUNCATE onceward.relay_state", "TRUNCATE onceward.gaps",
	"CREATE TABLE onceward.mine (id int)", "CREATE FUNCTION onceward.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'", "CREATE VIEW onceward.mine AS SELECT 1",
	"ALTER TABLE onceward.outbox ADD COLUMN mine int", "ALTER TABLE onceward.outbox DISABLE ROW LEVEL SECURITY", "ALTER TABLE onceward.outbox DETACH PARTITION {leaf}",
	"CREATE POLICY mine ON onceward.outbox USING (true)", "DROP TRIGGER onceward_fill ON onceward.replays",
	"CREATE TRIGGER mine BEFORE INSERT ON onceward.outbox FOR EACH ROW EXECUTE FUNCTION onceward.fill_replay()",
	"ALTER FUNCTION onceward.fill_replay() SECURITY INVOKER", "DROP FUNCTION onceward.refuse_insert()", "DROP SCHEMA onceward CASCADE",
	"DROP PUBLICATION onceward_orders", "ALTER PUBLICATION onceward_orders SET (publish = 'insert')", "CREATE PUBLICATION mine",
	"INSERT INTO {leaf} (id, namespace, aggregate_type, aggregate_id, event_type) VALUES ('{id}', 'shop', 't', 'a', 'e')", "SELECT FROM {leaf}",
	"INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, tx_id) VALUES ('{id}', 'shop', 't', 'a', 'e', '5')",
	"INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, created_at) VALUES ('{id}', 'shop', 't', 'a', 'e', now())",
	"INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, seq) OVERRIDING SYSTEM VALUE VALUES ('{id}', 'shop', 't', 'a', 'e', 5)",
	"UPDATE onceward.outbox_migrations SET version_id = 1", "ALTER ROLE {self} BYPASSRLS", "CREATE ROLE mine",
	"COPY (SELECT 1) TO PROGRAM 'true'",
)

// notAProducers is what those may not who write events.
var notAProducers = no(
	"SELECT tx_id FROM onceward.outbox", "SELECT created_at FROM onceward.outbox", "SELECT * FROM onceward.replays", "SELECT * FROM onceward.controls",
	"SELECT * FROM onceward.dead_letters", "SELECT * FROM onceward.relay_state", "SELECT * FROM onceward.gaps", "DELETE FROM onceward.relay_state",
	"UPDATE onceward.published_snapshots SET snapshot = pg_current_snapshot()", aGap,
	insertReplay+"'{billing}', 'r')", "INSERT INTO onceward.controls (control_id, action, letter_id, reason) VALUES ('{id}', 'discard', '{waiting}', 'r')",
	stateOf, aLetter, askRepair, askRetire, askRest, "SET ROLE onceward_owner", "SET ROLE onceward_relay", "SELECT pg_logical_emit_message(false, 'onceward', 'x')",
	// The content of any event, by a trigger on a table of one's own.
	"CREATE TEMP TABLE mine (replay_id uuid, id uuid, namespace text, payload bytea); CREATE TRIGGER mine BEFORE INSERT ON mine FOR EACH ROW EXECUTE FUNCTION onceward.fill_replay()",
)

var attempts = map[string][]try{
	writer: join(
		notTheOwners, notAProducers,
		yes(insertEvent+"'billing', 't', 'a', 'e', 'x')", insertEvent+"'shop', 't', 'a', 'e', 'x') ON CONFLICT DO NOTHING RETURNING id",
			"SELECT onceward.enqueue('billing:{id}', 't', 'a', 'e', 'x')"),
		[]try{{sql: "SELECT payload FROM onceward.outbox", rows: "SELECT 2"}},
	),
	bound: join(
		notTheOwners, notAProducers,
		yes(insertEvent+"'shop', 't', 'a', 'e', 'x')", insertEvent+"'shop', 't', 'a', 'e', 'x') ON CONFLICT DO NOTHING RETURNING id",
			insertEvent+"'shop', 't', 'a', 'e', 'x') ON CONFLICT (id) DO NOTHING", "SELECT onceward.enqueue('shop:{id}', 't', 'a', 'e', 'x')"),
		no(insertEvent+"'billing', 't', 'a', 'e', 'x')", insertEvent+"'billing', 't', 'a', 'e', 'x') ON CONFLICT DO NOTHING",
			insertEvent+"'Shop', 't', 'a', 'e', 'x')", "SELECT onceward.enqueue('billing:{id}', 't', 'a', 'e', 'x')", "SET ROLE onceward_writer",
			"SET LOCAL row_security = off; SELECT payload FROM onceward.outbox",
			"DROP POLICY onceward_select_shop ON onceward.outbox", "DROP POLICY onceward_everybody_else ON onceward.outbox"),
		[]try{
			{sql: "SELECT payload FROM onceward.outbox", rows: "SELECT 1"},
			{sql: "SELECT payload FROM onceward.outbox WHERE namespace = 'billing'", rows: "SELECT 0"},
			{sql: "SELECT onceward.enqueue('shop:{billing}', 't', 'a', 'e', 'x')", want: "OW001"},
			{sql: strings.ReplaceAll(insertEvent, "{id}", "{billing}") + "'shop', 't', 'a', 'e', 'x') ON CONFLICT DO NOTHING", rows: "INSERT 0 0"},
			{sql: "COPY onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type) FROM STDIN", want: "0A000"},
		},
	),
	operator: join(
		notTheOwners,
		yes(insertReplay+"'{billing}', 'r')", "INSERT INTO onceward.replays (replay_id, id, mode, replay_group, topic, reason) VALUES ('{id}', '{shop}', 'reprocess', 'g', 't', 'r')",
			"INSERT INTO onceward.replays (replay_id, id, dead, reason) VALUES ('{id}', '{discarded}', true, 'r')",
			"INSERT INTO onceward.replays (replay_id, id, dead, topic, reason) VALUES ('{id}', '{waiting}', true, 't', 'r')",
			"INSERT INTO onceward.controls (control_id, action, letter_id, payload, reason) VALUES ('{id}', 'edit', '{waiting}', 'x', 'r')",
			"INSERT INTO onceward.controls (control_id, action, namespace, aggregate_type, aggregate_id, reason) VALUES ('{id}', 'retry', 'n', 't', 'a', 'r')",
			"UPDATE onceward.relay_state SET paused = true, paused_routes = '{a}', skip = '{}'",
			"SELECT * FROM onceward.dead_letters", "SELECT * FROM onceward.relay_state", "SELECT * FROM onceward.outbox_migrations",
			askRepair, "SELECT onceward.decide_gap('{gap}', 'open', 'accepted', 'r')", askRetire, "SELECT a.* FROM onceward.outbox o, onceward.account(o.id, o.tx_id, o.seq) a"),
		[]try{
			{sql: "SELECT * FROM onceward.outbox", rows: "SELECT 2"},
			{sql: insertReplay + "'{id}', 'r')", want: "OW005"},
			{sql: "INSERT INTO onceward.replays (replay_id, id, dead, reason) VALUES ('{id}', '{billing}', true, 'r')", want: "OW005"},
			{sql: "INSERT INTO onceward.replays (replay_id, id, dead, reason) VALUES ('{id}', '{waiting}', true, 'r')", want: "OW005"},
			{sql: "INSERT INTO onceward.replays (replay_id, id, reason) VALUES ('{id}', '{waiting}', 'r')", want: "OW005"},
			{sql: "INSERT INTO onceward.replays (replay_id, id, dead, reason) VALUES ('{id}', '{ofreplay}', true, 'r')", want: "OW005"},
			{sql: "SELECT onceward.decide_gap('{gap}', 'open', 'repaired', 'r')", want: "22023"},
			{sql: "SELECT onceward.decide_gap('{gap}', 'before', 'repairing', 'r')", want: "OW006"},
			{sql: "SELECT onceward.retire_relay('nobody', 'r')", want: "OW006"},
			{sql: "SELECT onceward.rest_relay('nobody', true, '{}', 'r')", want: "OW006"},
		},
		no("INSERT INTO onceward.replays (replay_id, id, namespace, aggregate_type, aggregate_id, event_type, payload, created_at, reason) VALUES ('{id}', '{id}', 'billing', 't', 'a', 'PayoutRequested', 'x', now(), 'r')",
			"INSERT INTO onceward.replays (replay_id, id, payload, reason) VALUES ('{id}', '{billing}', 'x', 'r')",
			"INSERT INTO onceward.replays (replay_id, id, namespace, reason) VALUES ('{id}', '{billing}', 'shop', 'r')",
			"INSERT INTO onceward.replays (replay_id, id, headers, reason) VALUES ('{id}', '{billing}', '{}', 'r')",
			"INSERT INTO onceward.replays (replay_id, id, created_at, reason) VALUES ('{id}', '{billing}', now(), 'r')",
			"INSERT INTO onceward.replays (replay_id, id, requested_by, reason) VALUES ('{id}', '{billing}', 'bob', 'r')",
			"INSERT INTO onceward.replays (replay_id, id, tx_id, reason) VALUES ('{id}', '{billing}', '5', 'r')",
			insertEvent+"'billing', 't', 'a', 'e', 'x')", "SELECT onceward.enqueue('billing:{id}', 't', 'a', 'e', 'x')",
			stateOf, aLetter, aGap, "UPDATE onceward.dead_letters SET state = 'replayed'", "UPDATE onceward.dead_letters SET payload = NULL",
			"UPDATE onceward.gaps SET state = 'repaired'", "UPDATE onceward.gaps SET decided_by = 'bob'", "DELETE FROM onceward.gaps",
			"DELETE FROM onceward.published_snapshots", "DELETE FROM onceward.relay_state", "DELETE FROM onceward.relay_actions",
			"INSERT INTO onceward.relay_actions (action, slot, target, reason) VALUES ('a', 's', 't', 'r')",
			"INSERT INTO onceward.relay_actions (action, slot, target, reason, requested_by) VALUES ('a', 's', 't', 'r', 'bob')",
			"UPDATE onceward.gaps SET to_snapshot = pg_current_snapshot()", "UPDATE onceward.published_snapshots SET snapshot = pg_current_snapshot()",
			"UPDATE onceward.relay_state SET confirmed_lsn = '0/2'", "UPDATE onceward.relay_state SET epoch = 9", "UPDATE onceward.control_results SET note = 'x'",
			"INSERT INTO onceward.controls (control_id, action, letter_id, reason, requested_by) VALUES ('{id}', 'retry', '{waiting}', 'r', 'bob')",
			"SELECT pg_create_logical_replication_slot('mine', 'pgoutput')"),
	),
	relayRole: join(
		notTheOwners,
		yes(stateOf, aLetter, aGap, "UPDATE onceward.relay_state SET tick = 1", "UPDATE onceward.dead_letters SET state = 'replayed'", "SELECT * FROM onceward.replays",
			"SELECT * FROM onceward.controls", "SELECT pg_logical_emit_message(false, 'onceward', 'x')"),
		[]try{{sql: "SELECT * FROM onceward.outbox", rows: "SELECT 2"}, {sql: "SET LOCAL row_security = off; SELECT * FROM onceward.outbox", rows: "SELECT 2"}},
		no(insertEvent+"'billing', 't', 'a', 'e', 'x')", insertReplay+"'{billing}', 'r')", "SELECT * FROM business", askRepair, askRetire, askRest,
			"INSERT INTO onceward.controls (control_id, action, letter_id, reason) VALUES ('{id}', 'discard', '{waiting}', 'r')"),
	),
	maintainer: join(
		yes("CREATE TABLE onceward.mine (id int)", "DROP PUBLICATION onceward_orders", "ALTER TABLE onceward.outbox DETACH PARTITION {leaf}",
			"SELECT pg_logical_emit_message(true, 'onceward', 'x')"),
		[]try{{sql: "SET LOCAL row_security = off; SELECT * FROM onceward.outbox", rows: "SELECT 2"}},
		no("SELECT * FROM business", "CREATE ROLE mine", "COPY (SELECT 1) TO PROGRAM 'true'", "ALTER ROLE onceward_relay BYPASSRLS",
			"SELECT pg_create_logical_replication_slot('mine', 'pgoutput')", "CREATE TABLE public.mine (id int)"),
	),
	nobody: nothing, otherWriter: nothing, otherOperator: nothing, otherRelay: nothing,
}

// nothing: who is nobody here may not even look into the schema.
var nothing = join(notTheOwners, notAProducers, no(
	insertEvent+"'shop', 't', 'a', 'e', 'x')", "SELECT id FROM onceward.outbox", "SELECT onceward.enqueue('shop:{id}', 't', 'a', 'e', 'x')",
))

func join(lists ...[]try) (out []try) {
	for _, l := range lists {
		out = append(out, l...)
	}
	return out
}

// TestPrincipals: each role tries what it may not, and what it must be able to do,
// with row-level security on the outbox and after it was taken away.
func TestPrincipals(t *testing.T) {
	t.Parallel()
	onVersions(t, func(t *testing.T, version string) {
		c := newCluster(t, version)
		c.bind(t)
		c.untrusted(t, version)
		tries := c.everybody(t, "", nil)
		t.Run("a key of another namespace", func(t *testing.T) { c.foreignKey(t) })
		t.Run("the clients of a bound producer", func(t *testing.T) { c.clients(t) })
		t.Run("what is filled in", func(t *testing.T) { c.filled(t) })
		t.Run("who gets rights later", func(t *testing.T) { c.later(t) })
		t.Run("who cannot be bound", func(t *testing.T) { c.unbindable(t) })
		c.ctl(t, "--producer", bound, "--remove", "--apply")
		require.False(t, value[bool](t, c.super, "SELECT relrowsecurity FROM pg_class WHERE oid = 'onceward.outbox'::regclass"))
		require.Zero(t, value[int](t, c.super, "SELECT count(*) FROM pg_policy"))
		tries += c.everybody(t, "removed: ", map[string][]try{bound: nothing})
		t.Logf("PostgreSQL %s: %d tries of %d principals", version, tries, len(attempts))
		t.Run("roles of two databases", func(t *testing.T) { c.shared(t) })
	})
}
