//go:build e2e

package main

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// What the operator's role decides about gaps and relays, with no right on their
// rows: by the commands, in the database's name for the one who asks.
func TestAnOperatorDecidesAndRetires(t *testing.T) {
	pool, dsn := newDatabase(t)
	prefix := "ctl-" + pool.Config().ConnConfig.Database
	fine(t, "migrate", "roles", "--side", "outbox", "--prefix", prefix, "--apply")
	fine(t, "migrate", "up", "--side", "outbox")
	exec(t, pool, `INSERT INTO onceward.relay_state (slot, relay, database, system_identifier, timeline, confirmed_lsn, publication)
		SELECT 'gone_' || current_database(), 'gone', 'd', system_identifier::text, 1, '0/1', 'p' FROM pg_control_system()`)
	exec(t, pool, `INSERT INTO onceward.dead_letters (slot, letter_id, namespace, aggregate_type, aggregate_id, event_type, content_type, created_at, tx_id, seq, position,
		error_class, error) VALUES ('gone_' || current_database(), gen_random_uuid(), 'n', 't', 'a', 'e', 'c', now(), '5', 1, '0/1', 'c', 'e')`)
	gap := uuid.New().String()
	exec(t, pool, `INSERT INTO onceward.gaps (gap_id, slot, cause, detail, from_snapshot, to_snapshot, events, state)
		VALUES ($1, 'gone_' || current_database(), 'SLOT_MISSING', '', '1:1:', '2:2:', 3, 'open')`, gap)
	loginAs(t, pool, dsn, prefix+"_operator")
	require.Contains(t, fine(t, "gap", "show", gap), "outboxctl gap repair "+gap+` --reason "…"`)
	require.Contains(t, fine(t, "gap", "accept", gap, "--reason", "old", "--yes"), "is accepted")
	code, _, stderr := call(t, "gap", "accept", gap, "--reason", "again", "--yes")
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "nothing is left to decide")
	code, _, stderr = call(t, "gap", "repair", gap, "--reason", "wanted", "--yes")
	require.Equal(t, exitFailed, code, "nothing is called repaired of which no row is left")
	require.Contains(t, stderr, "none of the 3 events that were counted when it was found is left")
	require.Contains(t, stderr, "it stays accepted")
	exec(t, pool, `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload, tx_id)
		VALUES ((lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, '0') || '70008000000000000001')::uuid, 'n', 't', 'a', 'e', 'x', '1')`)
	_, _, stderr = call(t, "gap", "repair", gap, "--reason", "after all")
	require.Contains(t, stderr, "publish the 1 event that is left of the 3 of gap "+gap)
	repaired := fine(t, "gap", "repair", gap, "--reason", "after all", "--yes")
	require.Contains(t, repaired, "is repairing")
	require.Contains(t, repaired, "1 event is left in it of the 3 that were counted")
	require.Regexp(t, "CAUSE +COUNTED", fine(t, "gap", "list"))
	code, _, stderr = call(t, "gap", "accept", gap, "--reason", "too long", "--yes")
	require.Equal(t, exitFailed, code, "a repair that has begun is not cut off")
	require.Contains(t, stderr, "1 of its events is left")
	require.Contains(t, stderr, "outboxctl skip KEY")

	exec(t, pool, `INSERT INTO onceward.gaps (gap_id, slot, cause, detail, from_snapshot, to_snapshot, events, state)
		VALUES (gen_random_uuid(), 'gone_' || current_database(), 'WENT_BACK', '', '2:2:', '3:3:', 1, 'open')`)
	exec(t, pool, `INSERT INTO onceward.published_snapshots (slot, snapshot, taken_at) VALUES ('gone_' || current_database(), '5:5:', now())`)
	exec(t, pool, `WITH lane AS (INSERT INTO onceward.lanes (slot, namespace, topic, aggregate_type) VALUES ('gone_' || current_database(), 'n', '', 't') RETURNING id), late AS (
		INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload, tx_id)
		SELECT (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, '0') || '7000800000000000000' || i)::uuid, 'n', 't', 'a', 'e', 'x', i::text::xid8 FROM generate_series(2, 3) i
		RETURNING id, tx_id)
		INSERT INTO onceward.waiting (lane, id, tx_id, position, ordinal) SELECT lane.id, late.id, late.tx_id, '0/1', 1 FROM lane, late WHERE late.tx_id = '3'`)
	exec(t, pool, `INSERT INTO onceward.dead_letters (slot, letter_id, namespace, aggregate_type, aggregate_id, event_type, content_type, created_at, tx_id, seq, position,
		error_class, error, state) VALUES ('gone_' || current_database(), gen_random_uuid(), 'n', 't', 'b', 'e', 'c', now(), '5', 1, '0/1', 'c', 'e', 'replayed')`)
	exec(t, pool, "SELECT pg_create_physical_replication_slot('gone_' || current_database())")
	code, _, stderr = call(t, "retire", "--relay", "gone", "--reason", "moved", "--yes")
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "exists: stop the relay for good, then drop the slot")
	exec(t, pool, "SELECT pg_drop_replication_slot('gone_' || current_database())")
	code, _, stderr = call(t, "retire", "--relay", "gone", "--reason", "moved")
	require.NotZero(t, code)
	require.Contains(t, stderr, "which has not published 1 event (and 1 that wait for their route, and 1 of open gaps), and discard its 1 dead letter that waits")
	require.Contains(t, fine(t, "retire", "--relay", "gone", "--reason", "moved", "--yes"), "1 dead letter that waited is discarded")
	require.Equal(t, []string{"discarded"}, column[string](&installation{t: t, pool: pool}, "SELECT state FROM onceward.dead_letters"), "what it had published is forgotten")
	var written string
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT string_agg(concat_ws(' ', action, reason, requested_by), ', ' ORDER BY action_id) FROM onceward.relay_actions").Scan(&written))
	by := " login-" + prefix + "_operator"
	require.Equal(t, "gap accept old"+by+", gap repair after all"+by+", retire moved"+by, written)
}

// TestRetireBesideTheOriginal: in a copy of a database on the same server the slot of
// the relay's name is the original's. Nobody is told to drop it, and the copy's relay
// is forgotten, by the command that status prints.
func TestRetireBesideTheOriginal(t *testing.T) {
	original, _ := newDatabase(t)
	slot := "onceward_" + original.Config().ConnConfig.Database
	exec(t, original, "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot)
	t.Cleanup(func() {
		_, err := original.Exec(context.Background(), "SELECT pg_drop_replication_slot($1)", slot)
		require.NoError(t, err)
	})
	pool, _ := newDatabase(t)
	fine(t, "migrate", "up", "--side", "outbox")
	exec(t, pool, `INSERT INTO onceward.relay_state (slot, relay, database, system_identifier, timeline, confirmed_lsn, publication)
		VALUES ($1, 'shop', 'd', '1', 1, '0/1', 'p')`, slot)
	of := "of database " + original.Config().ConnConfig.Database
	code, status, _ := call(t, "status")
	require.Equal(t, exitWrong, code)
	require.Contains(t, status, "slot "+slot+" belongs to database "+original.Config().ConnConfig.Database+", and the relay that uses it is that database's: this database is a copy")
	require.NotContains(t, status, "is gone")
	require.NotContains(t, status, "pg_drop_replication_slot")
	command := regexp.MustCompile("`outboxctl (retire [^`]*)`").FindStringSubmatch(status)
	require.NotNil(t, command, status)
	args := strings.Fields(strings.ReplaceAll(command[1], `"…"`, "copied"))
	_, _, stderr := call(t, args...)
	require.Contains(t, stderr, "stays")
	require.NotContains(t, stderr, "pg_drop_replication_slot")
	require.Contains(t, fine(t, append(args, "--yes")...), "is "+of+" and was not this relay's: it stays")
	var left, relays int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1), (SELECT count(*) FROM onceward.relay_state)", slot).Scan(&left, &relays))
	require.Equal(t, []int{1, 0}, []int{left, relays})
}

// TestRetireWhatNeverBegan: a relay that was started under a wrong name, and asked, is only
// what its process said. Nobody can start it any more to end the problem: it is forgotten by
// the command that status prints, not while its process lives, and with no right on rows.
func TestRetireWhatNeverBegan(t *testing.T) {
	pool, dsn := newDatabase(t)
	prefix := "ctl-" + pool.Config().ConnConfig.Database
	fine(t, "migrate", "roles", "--side", "outbox", "--prefix", prefix, "--apply")
	fine(t, "migrate", "up", "--side", "outbox")
	process := "h/1/" + pool.Config().ConnConfig.Database
	halted := func(slot, relay string) {
		exec(t, pool, `INSERT INTO onceward.relay_health (slot, process, relay, state, since, code, detail, waits)
			VALUES ($1, $2, $3, 'halted', now(), 'OUTBOX_NOT_EMPTY', 'x', '[]')`, slot, process, relay)
	}
	halted("onceward_second", "second")
	loginAs(t, pool, dsn, prefix+"_operator")
	command := regexp.MustCompile("`outboxctl (retire [^`]*)`").FindStringSubmatch(wrong(t, "status"))
	require.NotNil(t, command)
	args := strings.Fields(strings.ReplaceAll(command[1], `"…"`, "typo"))
	_, _, stderr := call(t, args...)
	require.Contains(t, stderr, "forget relay second (slot onceward_second), which has never begun")

	lives := func() *pgxpool.Conn {
		session, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		t.Cleanup(session.Release) // or a failure would wait for it
		_, err = session.Exec(t.Context(), "SET application_name = 'onceward process "+process+"'")
		require.NoError(t, err)
		return session
	}
	alive := lives()
	code, _, stderr := call(t, append(args, "--yes")...)
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "a process of relay second lives: stop it first")
	_, err := alive.Exec(t.Context(), "RESET application_name")
	require.NoError(t, err)
	alive.Release()

	require.Contains(t, fine(t, append(args, "--yes")...), "relay second is forgotten")
	require.NotContains(t, fine(t, "status"), "second")
	code, _, stderr = call(t, append(args, "--yes")...)
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "no relay is known here: none has begun yet, or all were retired")

	halted("onceward_first", "first")
	halted("onceward_third", "third")
	exec(t, pool, `INSERT INTO onceward.relay_state (slot, relay, database, system_identifier, timeline, confirmed_lsn, publication)
		VALUES ('onceward_first', 'first', 'd', '1', 1, '0/1', 'p')`)
	first := []string{"retire", "--relay", "first", "--reason", "moved", "--yes"}
	alive = lives()
	code, _, stderr = call(t, first...)
	require.Equal(t, exitFailed, code)
	cure := regexp.MustCompile("a process of relay first lives: stop it first; where its host is gone: (SELECT .*;)").FindStringSubmatch(stderr)
	require.NotNil(t, cure, "it would begin anew: %s", stderr)
	exec(t, pool, cure[1])
	require.Error(t, alive.Ping(t.Context()))
	alive.Release()
	require.Contains(t, fine(t, first...), "relay first is forgotten")
	require.Equal(t, []string{"third"}, column[string](&installation{t: t, pool: pool}, "SELECT relay FROM onceward.relay_health"), "or it would come back as one that has not begun")
	require.Contains(t, fine(t, "retire", "--relay", "third", "--reason", "typo", "--yes"), "relay third is forgotten")
}
