//go:build e2e

package main

import (
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator/events"
	"github.com/onceward/onceward/internal/operator/partitions"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/outbox"
)

// loginAs makes the commands of the test use a member of a role.
func loginAs(t *testing.T, pool *pgxpool.Pool, dsn, role string) {
	t.Helper()
	login := "login-" + role
	exec(t, pool, "CREATE ROLE "+pgx.Identifier{login}.Sanitize()+" LOGIN PASSWORD 'secret' IN ROLE "+pgx.Identifier{role}.Sanitize())
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	u.User = url.UserPassword(login, "secret")
	t.Setenv(dsnVariable, u.String())
}

func TestRolesArePrintedAndApplied(t *testing.T) {
	pool, dsn := newDatabase(t)
	prefix := "ctl-" + pool.Config().ConnConfig.Database
	printed := fine(t, "migrate", "roles", "--side", "outbox", "--prefix", prefix, "--print")
	require.Contains(t, printed, `CREATE ROLE "`+prefix+`_writer" NOLOGIN`)
	require.Contains(t, printed, `-- ALTER ROLE "`+prefix+`_relay" LOGIN PASSWORD '…';`)
	exec(t, pool, printed) // the whole script, as psql would run it
	applied := fine(t, "migrate", "roles", "--side", "outbox", "--prefix", prefix, "--apply")
	require.Contains(t, applied, "role "+prefix+"_relay has its rights")
	require.NotContains(t, applied, "DO $onceward$")
	report := decode[rolesReport](t, fine(t, "migrate", "roles", "--side", "consumer", "--prefix", prefix, "--apply", "-o", "json"))
	require.Equal(t, []string{prefix + "_owner", prefix + "_consumer", prefix + "_consumer_maintainer", prefix + "_operator"}, report.Roles)

	loginAs(t, pool, dsn, prefix+"_writer")
	code, _, stderr := call(t, "migrate", "roles", "--side", "outbox", "--prefix", prefix+"x", "--apply")
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "permission denied")
	loginAs(t, pool, dsn, prefix+"_maintainer")
	fine(t, "migrate", "up", "--side", "outbox", "--relay", "orders")
	fine(t, "partitions", "maintain", "--ahead", "16")
	loginAs(t, pool, dsn, prefix+"_operator")
	require.Contains(t, fine(t, "status"), "no relay is known here")
	require.Contains(t, fine(t, "list"), "no event was found in the state pending")
	require.Contains(t, fine(t, "partitions", "status"), "16 days ahead are covered")
	code, _, stderr = call(t, "partitions", "maintain", "--ahead", "20")
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "owner of the table or a member of it")
}

// TestDefaultPartitionIsNamed: one that a user made hides nothing else from whoever looks.
func TestDefaultPartitionIsNamed(t *testing.T) {
	pool, _ := newDatabase(t)
	fine(t, "migrate", "up", "--side", "outbox")
	exec(t, pool, `CREATE SCHEMA "My"`)
	exec(t, pool, `CREATE TABLE "My".rest PARTITION OF onceward.outbox DEFAULT`)
	const cure = `DEFAULT_PARTITION: onceward.outbox has a DEFAULT partition, "My".rest;`
	for _, args := range [][]string{{"status"}, {"partitions", "status"}, {"partitions", "maintain", "--dry-run"}} {
		out := wrong(t, args...)
		require.Contains(t, out, cure)
		require.Contains(t, out, `ALTER TABLE onceward.outbox DETACH PARTITION "My".rest`)
		require.Equal(t, 1, strings.Count(out, "DEFAULT_PARTITION"))
		require.Contains(t, out, "days ahead", "the other partitions are counted")
	}
	leaf := "outbox_" + partition.Day(time.Now()).Format("20060102")
	require.Contains(t, wrong(t, "partitions", "status"), leaf)
	const detach = `SET lock_timeout = '2s'; ALTER TABLE onceward.outbox DETACH PARTITION "My".rest`
	require.Contains(t, wrong(t, "migrate", "status", "--side", "outbox"), "; "+detach+"; then run outboxctl partitions maintain --config relay.yaml", "its rows are not moved")
	code, out, stderr := call(t, "partitions", "maintain", "--ahead", "20")
	require.Equal(t, exitFailed, code)
	require.Contains(t, out, leaf)
	require.Contains(t, stderr, cure)
	require.Equal(t, 1, strings.Count(out+stderr, "DEFAULT_PARTITION"))
	exec(t, pool, detach+"; RESET lock_timeout")
	require.NotContains(t, fine(t, "partitions", "maintain", "--ahead", "20"), "DEFAULT")
}

// TestATableIsGone: whoever looks is told which, and the command that he is told makes it.
func TestATableIsGone(t *testing.T) {
	pool, _ := newDatabase(t)
	fine(t, "migrate", "up", "--side", "outbox")
	for _, table := range []string{"relay_health", "kafka_topics"} {
		exec(t, pool, "DROP TABLE onceward."+table)
		for _, args := range [][]string{{"status"}, {"list"}} {
			code, _, stderr := call(t, args...)
			if code != exitFailed && table == "kafka_topics" && args[0] == "list" {
				continue // does not read it
			}
			require.Equal(t, exitFailed, code)
			require.Contains(t, stderr, `"onceward.`+table+`" does not exist`)
			require.Contains(t, stderr, "connect to the database that has it; or, if this is to be it, run `outboxctl migrate up --side outbox`, which makes it, or says what became of it")
		}
		require.Contains(t, wrong(t, "migrate", "status", "--side", "outbox"), "onceward."+table)
		fine(t, "migrate", "up", "--side", "outbox")
		fine(t, "status")
	}
	exec(t, pool, "DROP TABLE onceward.lanes CASCADE")
	code, _, stderr := call(t, "migrate", "up", "--side", "outbox")
	require.Equal(t, exitFailed, code, "what waited is known nowhere else")
	require.Contains(t, stderr, "onceward.lanes is not there")
	require.Contains(t, stderr, "restore the database from a backup")
}

func TestPartitionsAreMaintained(t *testing.T) {
	pool, dsn := newDatabase(t)
	fine(t, "migrate", "up", "--side", "outbox")
	day := partition.Day(time.Now()).AddDate(0, 0, -9)
	made, err := partition.Ensure(t.Context(), pool, "onceward.outbox", "id", partition.Span{First: day, Last: day, Reopen: true})
	require.NoError(t, err)
	old := func(stdout string) partitions.Leaf {
		r := decode[partitions.Report](t, stdout)
		for _, l := range r.Leaves {
			if l.Name == made[0] {
				return l
			}
		}
		return partitions.Leaf{}
	}
	require.Regexp(t, made[0]+` +`+day.Format(time.DateOnly)+` +open +not analysed yet +.*older than 7 days; would be closed`, fine(t, "partitions", "status"))
	require.Equal(t, "open", old(fine(t, "partitions", "maintain", "--dry-run", "-o", "json")).State)
	l := old(fine(t, "partitions", "maintain", "-o", "json"))
	require.Equal(t, "waiting", l.State)
	require.Equal(t, "no relay is known here: none has begun yet, or all were retired", l.Why)
	require.Positive(t, l.Bytes)

	exec(t, pool, insertState, "onceward_ctl")
	exec(t, pool, `INSERT INTO onceward.published_snapshots SELECT slot, pg_current_snapshot(), now() FROM onceward.relay_state`)
	require.Contains(t, old(fine(t, "partitions", "status", "-o", "json")).Why, "would be dropped")
	require.Equal(t, "dropped", old(fine(t, "partitions", "maintain", "-o", "json")).State)
	require.Empty(t, old(fine(t, "partitions", "maintain", "-o", "json")).State)
	require.Contains(t, fine(t, "partitions", "maintain", "--ahead", "15"), "made 1 partition: outbox_")

	exec(t, pool, "DO $$ DECLARE p regclass; BEGIN FOR p IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'onceward.outbox'::regclass LOOP EXECUTE 'DROP TABLE ' || p; END LOOP; END $$")
	code, stdout, _ := call(t, "partitions", "status")
	require.Equal(t, exitWrong, code)
	require.Contains(t, stdout, "! NO_PARTITION: onceward.outbox has no partition of today (UTC): every Enqueue fails. To mend it: outboxctl partitions maintain")

	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	_, err = conn.Exec(t.Context(), "SELECT pg_advisory_lock($1)", int64(0x6f7574626f787074))
	require.NoError(t, err)
	code, _, stderr := call(t, "partitions", "maintain")
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "another session is maintaining")
}

func TestListByState(t *testing.T) {
	pool, dsn := newDatabase(t)
	fine(t, "migrate", "up", "--side", "outbox")
	first, second := enqueue(t, pool, "{}"), enqueue(t, pool, "{}")
	listed := func(args ...string) events.List {
		return decode[events.List](t, fine(t, append([]string{"list", "-o", "json"}, args...)...))
	}
	keys := func(r events.List) (out []string) {
		for _, e := range r.Events {
			out = append(out, e.State+" "+e.Key)
		}
		return out
	}
	require.Equal(t, []string{"pending " + first.String(), "pending " + second.String()}, keys(listed()), "oldest first")
	require.Contains(t, fine(t, "list"), "no relay is known here")
	exec(t, pool, `INSERT INTO onceward.relay_health (slot, process, relay, state, since, code, detail, waits) VALUES ('onceward_ctl', 'h/1/ctl', 'ctl', 'halted', now(), 'OUTBOX_NOT_EMPTY', 'x', '[]')`)
	require.Contains(t, fine(t, "list"), "relay ctl has not begun: `outboxctl status` says what it waits for")
	require.Contains(t, fine(t, "show", first.String()), "relay ctl has not begun: `outboxctl status` says what it waits for")
	require.Contains(t, wrong(t, "status"), "! relay ctl has not begun, and no process of it is connected")
	exec(t, pool, "DELETE FROM onceward.relay_health")
	exec(t, pool, insertState, "onceward_ctl")
	require.Equal(t, []string{"pending " + first.String(), "pending " + second.String()}, keys(listed()))
	require.Contains(t, fine(t, "list"), "relay ctl has no published snapshot yet")
	require.Empty(t, keys(listed("--state", "published")))

	exec(t, pool, "INSERT INTO onceward.published_snapshots SELECT slot, pg_current_snapshot(), now() FROM onceward.relay_state ON CONFLICT (slot) DO UPDATE SET snapshot = excluded.snapshot, taken_at = excluded.taken_at")
	third := enqueue(t, pool, "{}")
	require.Equal(t, []string{"pending " + third.String()}, keys(listed()))
	require.Equal(t, []string{"published " + second.String(), "published " + first.String()}, keys(listed("--state", "published")), "newest first")
	limited := listed("--state", "published", "--limit", "1")
	require.Len(t, limited.Events, 1)
	require.True(t, limited.More)
	for flag, value := range map[string]string{"--namespace": "orders", "--aggregate-type": "order", "--aggregate": "A", "--type": "OrderPaid"} {
		require.Len(t, listed(flag, value).Events, 1, flag)
		require.Empty(t, listed(flag, "other").Events, flag)
		require.Empty(t, listed("--state", "published", flag, "other").Events, flag)
	}

	exec(t, pool, insertLetter, "onceward_ctl", first.UUID(), "orders", "open")
	require.Equal(t, []string{"published " + second.String()}, keys(listed("--state", "published")))
	dead := listed("--state", "dead")
	require.Equal(t, []string{"dead " + first.String()}, keys(dead))
	require.Equal(t, "too-large", dead.Events[0].Letter.Class)
	require.Contains(t, fine(t, "list", "--state", "dead"), "too-large: 2 MB is more than 1 MB")

	require.Empty(t, listed("--stuck", "1h").Events)
	require.Contains(t, fine(t, "list", "--stuck", "1h"), "no event was found that is pending or waiting for as long as --stuck says")
	code, stdout, _ := call(t, "list", "--stuck", "1ms")
	require.Equal(t, exitWrong, code)
	require.Contains(t, stdout, third.String())

	exec(t, pool, "INSERT INTO onceward.published_snapshots SELECT slot, pg_current_snapshot(), now() FROM onceward.relay_state ON CONFLICT (slot) DO UPDATE SET snapshot = excluded.snapshot, taken_at = excluded.taken_at")
	twins := []outbox.Key{newKey(t, "orders"), newKey(t, "orders")}
	exec(t, pool, `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload, seq) OVERRIDING SYSTEM VALUE
		SELECT i, 'orders', 'order', 'A', 'OrderPaid', '{}', -1 FROM unnest($1::uuid[]) i`, []uuid.UUID{twins[0].UUID(), twins[1].UUID()})
	require.Equal(t, []string{"pending " + twins[0].String(), "pending " + twins[1].String()}, keys(listed()), "each of one seq")
	exec(t, pool, "DELETE FROM onceward.outbox WHERE id = ANY($1)", []uuid.UUID{twins[0].UUID(), twins[1].UUID()})
	exec(t, pool, "WITH l AS (INSERT INTO onceward.lanes (slot, namespace, aggregate_type, topic) VALUES ('onceward_ctl', 'orders', 'order', '') RETURNING id) INSERT INTO onceward.waiting (lane, position, ordinal, id, tx_id) SELECT l.id, '0/10', 0, o.id, o.tx_id FROM l, onceward.outbox o WHERE o.id = $1", third.UUID())
	require.NotContains(t, fine(t, "list", "--state", "waiting"), "replays wait too")
	exec(t, pool, "INSERT INTO onceward.waiting_copies (lane, position, ordinal, kind, letter, item) SELECT id, '0/10', 1, 'replay', 0, '{}' FROM onceward.lanes")
	require.Contains(t, fine(t, "list", "--state", "waiting"), "1 replay waits too: `outboxctl status`")
	require.Empty(t, keys(listed()), "it waits, and is not pending")
	require.Empty(t, listed("--stuck", "1h").Events)
	code, stdout, _ = call(t, "list", "--stuck", "1ms")
	require.Equal(t, exitWrong, code, "what waits for its route is stuck too")
	require.Regexp(t, third.String()+" +waiting", stdout)
	fine(t, "pause", "--route", "shop.order", "--reason", "they move")
	_, stdout, _ = call(t, "show", third.String())
	require.Regexp(t, "route shop.order is paused by [^ ]+ since [-0-9: .Z]+ \\(they move\\), and `outboxctl resume --relay ctl --route shop.order` lets it go on", stdout)

	prefix := "ctl-" + pool.Config().ConnConfig.Database
	fine(t, "migrate", "roles", "--side", "outbox", "--prefix", prefix, "--apply")
	loginAs(t, pool, dsn, prefix+"_relay") // as of --config, which may not read what operators did
	require.Regexp(t, `state +waiting: its route is paused, or cannot be used`, fine(t, "show", third.String()))
}

// A relay whose snapshot is behind another's: what one of them still owes is
// pending, as show says it too; asked alone, each says its own.
func TestListOfTwoRelays(t *testing.T) {
	pool, _ := newDatabase(t)
	fine(t, "migrate", "up", "--side", "outbox")
	exec(t, pool, insertState, "onceward_a")
	exec(t, pool, insertState, "onceward_b")
	exec(t, pool, "INSERT INTO onceward.published_snapshots SELECT slot, pg_current_snapshot(), now() FROM onceward.relay_state ON CONFLICT (slot) DO UPDATE SET snapshot = excluded.snapshot, taken_at = excluded.taken_at")
	key := enqueue(t, pool, "{}")
	require.Contains(t, fine(t, "list"), key.String())
	exec(t, pool, "INSERT INTO onceward.published_snapshots SELECT slot, pg_current_snapshot(), now() FROM onceward.relay_state WHERE slot = 'onceward_b' ON CONFLICT (slot) DO UPDATE SET snapshot = excluded.snapshot, taken_at = excluded.taken_at")
	exec(t, pool, "UPDATE onceward.relay_state SET relay = slot")
	require.Contains(t, fine(t, "list"), key.String())
	require.Regexp(t, `state +pending: not covered by the last published snapshot of relay onceward_a`, fine(t, "show", key.String()))
	require.NotContains(t, fine(t, "list", "--state", "published"), key.String())
	require.NotContains(t, fine(t, "list", "--relay", "onceward_b"), key.String())
	require.Contains(t, fine(t, "list", "--relay", "onceward_b", "--state", "published"), key.String())
	require.NotContains(t, fine(t, "list", "--relay", "onceward_a", "--state", "published"), key.String())
}

// A list of what is pending must not read what is published: the index on tx_id
// leads to it.
func TestListPendingIsServedByTheIndex(t *testing.T) {
	pool, _ := newDatabase(t)
	fine(t, "migrate", "up", "--side", "outbox")
	exec(t, pool, insertState, "onceward_ctl")
	for range 4 {
		exec(t, pool, `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type)
			SELECT overlay(gen_random_uuid()::text placing left($1, 13) from 1 for 13)::uuid, 'orders', 'order', 'A', 'E' FROM generate_series(1, 5000)`, outbox.FirstID(time.Now()).String())
	}
	exec(t, pool, "ANALYZE onceward.outbox")
	exec(t, pool, "INSERT INTO onceward.published_snapshots SELECT slot, pg_current_snapshot(), now() FROM onceward.relay_state ON CONFLICT (slot) DO UPDATE SET snapshot = excluded.snapshot, taken_at = excluded.taken_at")
	enqueue(t, pool, "{}")
	rows, err := pool.Query(t.Context(), "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) "+queryText(t, "ListByState", map[string]string{
		"state": "'pending'", "slot": "''", "namespace": "''", "aggregate_type": "''", "aggregate_id": "''", "event_type": "''", "older_seconds": "0", "row_limit": "100",
		"filled_slots": "'{}'", "filled_tables": "'{}'",
	}))
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	plan := strings.Join(lines, "\n")
	require.Contains(t, plan, "tx_id_idx")
	require.NotRegexp(t, `rows=(20000|5000)`, plan, "what is published was read:\n"+plan)
}

func TestShowTakesWhatItNeedsFromTheRelaysConfig(t *testing.T) {
	pool, dsn := newDatabase(t)
	fine(t, "migrate", "up", "--side", "outbox")
	key := enqueue(t, pool, "{}")
	brokers, _ := published(t, key.String())
	text := fmt.Sprintf(`name: orders
postgres: {dsn: "%s", insecure: true}
kafka: {brokers: ["%s"], insecure: true}
routes: [{match: {event_type: "OrderPaid"}, topic: "{namespace}.{aggregate_type}"}]
`, dsn, brokers)
	path := configFile(t, text)
	require.Contains(t, fine(t, "show", key.String(), "--config", path), "published: found in topic "+topic)
	path = configFile(t, strings.Replace(text, `"OrderPaid"`, `"Other"`, 1))
	require.Contains(t, wrong(t, "show", key.String(), "--config", path), "kafka: not searched: ", "it was to be searched")
	require.Contains(t, fine(t, "show", key.String(), "--config", path, "--topic", topic), "published: found in topic "+topic)
	require.Contains(t, wrong(t, "show", someKey, "--config", path), "give --topic")

	exec(t, pool, `INSERT INTO onceward.relay_state (slot, relay, database, system_identifier, timeline, confirmed_lsn, publication)
		SELECT 'onceward_orders', 'orders', current_database(), system_identifier::text, 1, '0/10', 'onceward_orders' FROM pg_control_system()`)
	exec(t, pool, `INSERT INTO onceward.published_snapshots VALUES ('onceward_orders', pg_current_snapshot(), now())`)
	fine(t, "show", key.String())
	path = configFile(t, strings.Replace(text, "{namespace}.{aggregate_type}", "removed", 1))
	gone := wrong(t, "show", key.String(), "--config", path)
	require.Contains(t, gone, "kafka: there is no topic removed")
	require.Contains(t, gone, "! the database says that relay orders has published it, and there is no topic removed: ")
	require.Contains(t, gone, "`outboxctl replay "+key.String()+" --config FILE")
}

// queryText is a query of internal/outboxdb/list.sql with its parameters filled in.
func queryText(t *testing.T, name string, values map[string]string) string {
	t.Helper()
	file, err := os.ReadFile("../../internal/outboxdb/list.sql")
	require.NoError(t, err)
	_, text, found := strings.Cut(string(file), "-- name: "+name+" ")
	require.True(t, found, name)
	text, _, _ = strings.Cut(text, ";\n")
	_, text, found = strings.Cut(text, "\nWITH ")
	require.True(t, found, name)
	return regexp.MustCompile("@([a-z_]+)").ReplaceAllStringFunc("WITH "+text, func(parameter string) string {
		require.Contains(t, values, parameter[1:])
		return values[parameter[1:]]
	})
}

// TestASchemaOfALaterRelease: what is said to mend it is to upgrade the program.
func TestASchemaOfALaterRelease(t *testing.T) {
	pool, _ := newDatabase(t)
	fine(t, "migrate", "up", "--side", "outbox")
	exec(t, pool, "INSERT INTO onceward.outbox_migrations (version_id, is_applied) VALUES (4711, true)")
	report := look(t, exitWrong)
	require.Len(t, report.Problems, 1)
	require.Equal(t, []string{"schema", "SCHEMA_AHEAD"}, []string{report.Problems[0].Check, report.Problems[0].Code})
	require.Contains(t, report.Problems[0].What, "upgrade this binary")
	exec(t, pool, "DROP TABLE onceward.kafka_topics") // as a later release may
	for _, args := range [][]string{{"migrate", "status", "--side", "outbox"}, {"migrate", "up", "--side", "outbox"}} {
		code, stdout, stderr := call(t, args...)
		require.NotEqual(t, exitFine, code)
		require.Contains(t, stdout+stderr, "upgrade ")
		require.NotContains(t, stdout+stderr, "outboxctl migrate up")
	}
}
