//go:build e2e

package main

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// What adopt --kafka gap doubts is what the account called published and no more:
// what is older than the relay, given up, or pending, stays so, and no event is in
// two gaps.
func TestAdoptKafkaGap(t *testing.T) {
	pool, dsn := newDatabase(t)
	prefix := "ctl-" + pool.Config().ConnConfig.Database
	fine(t, "migrate", "roles", "--side", "outbox", "--prefix", prefix, "--apply")
	fine(t, "migrate", "up", "--side", "outbox")
	exec(t, pool, `INSERT INTO onceward.relay_state (slot, relay, database, system_identifier, timeline, confirmed_lsn, publication, kafka_cluster, kafka_met, mode, epoch)
		VALUES ('s', 'orders', 'd', (SELECT system_identifier::text FROM pg_control_system()), 1, '0/1', 'p', 'old', 'new', 'exactly-once', 4)`)
	exec(t, pool, `INSERT INTO onceward.published_snapshots VALUES ('s', '100:100:', now())`)
	exec(t, pool, `INSERT INTO onceward.gaps (gap_id, slot, cause, detail, from_snapshot, to_snapshot, events, state, cursor, found_at)
		SELECT gen_random_uuid(), 's', 'X', '', f::pg_snapshot, t::pg_snapshot, 1, s, 0, now() - interval '1 day' + n * interval '1 minute'
		FROM (VALUES (1, '1:1:', '20:20:', 'before'), (2, '30:30:', '40:40:', 'accepted'), (3, '50:50:', '60:60:', 'repaired'), (4, '70:70:', '80:80:', 'repairing')) v (n, f, t, s)`)
	exec(t, pool, `UPDATE onceward.gaps SET cursor = 1000000 WHERE state = 'repairing'`)
	exec(t, pool, `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload, tx_id)
		SELECT (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, '0') || '70008000' || lpad(n::text, 12, '0'))::uuid, 'n', 't', 'a', 'e', 'x', n::text::xid8
		FROM unnest(ARRAY[10, 25, 35, 45, 55, 65, 75, 90, 95, 110]) n`)
	exec(t, pool, `INSERT INTO onceward.dead_letters (slot, letter_id, namespace, aggregate_type, aggregate_id, event_type, content_type, created_at, tx_id, seq, position, error_class, error, state)
		SELECT 's', id, 'n', 't', 'a', 'e', 'c', now(), tx_id, seq, '0/1', 'c', 'too large', 'replayed' FROM onceward.outbox WHERE tx_id = '95'`)
	states := func() map[string]string {
		rows, err := pool.Query(t.Context(), `SELECT o.tx_id::text, string_agg(a.state, ' ') FROM onceward.outbox o, onceward.account(o.id, o.tx_id, o.seq) a GROUP BY 1`)
		require.NoError(t, err)
		found := map[string]string{}
		var tx, state string
		_, err = pgx.ForEachRow(rows, []any{&tx, &state}, func() error { found[tx] = state; return nil })
		require.NoError(t, err)
		return found
	}
	before := map[string]string{
		"10": "before", "25": "published", "35": "given-up", "45": "published", "55": "published", "65": "published", "75": "published", "90": "published",
		"95": "published", "110": "pending",
	}
	require.Equal(t, before, states())
	loginAs(t, pool, dsn, prefix+"_operator")
	for _, refused := range [][]string{
		{"adopt", "--kafka", "gap", "--by", "copy", "--reason", "r", "--yes"},
		{"adopt", "--kafka", "never", "--reason", "r", "--yes"},
		{"adopt", "--kafka", "gap", "--yes"},
		{"adopt", "--kafka", "gap", "--cluster", "third", "--reason", "r", "--yes"},
		{"adopt", "--kafka", "gap", "--relay", "none", "--reason", "r", "--yes"},
		{"adopt", "--by", "copy", "--cluster", "new", "--reason", "r", "--yes"},
	} {
		code, _, _ := call(t, refused...)
		require.NotZero(t, code, refused)
	}
	exec(t, pool, `UPDATE onceward.relay_state SET kafka_met = NULL`)
	code, _, stderr := call(t, "adopt", "--kafka", "gap", "--cluster", "nwe", "--reason", "r", "--yes")
	require.Equal(t, 2, code)
	require.Contains(t, stderr, "relay orders has not met Kafka cluster nwe, and gap cannot be undone: start the relay with the new kafka.brokers")
	exec(t, pool, `UPDATE onceward.relay_state SET kafka_met = 'new'`)
	code, _, stderr = call(t, "adopt", "--kafka", "gap", "--reason", "moved")
	require.NotZero(t, code)
	require.Contains(t, stderr, "7 events in the outbox count as published and 1 is pending")
	require.Equal(t, before, states(), "nothing was done yet")

	out := fine(t, "adopt", "--kafka", "gap", "--reason", "moved", "--yes")
	require.Contains(t, out, "5 events are in doubt")
	require.Contains(t, out, "1 dead letter that was replayed is open again: `outboxctl dead list`; they hold nothing, and each comes when it is retried, out of its aggregate's order")
	require.Equal(t, map[string]string{
		"10": "before", "25": "gap", "35": "given-up", "45": "gap", "55": "gap", "65": "gap", "75": "pending", "90": "gap", "95": "parked", "110": "pending",
	}, states(), "what a repair had published is to be repaired again")
	var gaps, row string
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT string_agg(from_snapshot || ' ' || to_snapshot || ' ' || events, ', ' ORDER BY pg_snapshot_xmax(to_snapshot)) FROM onceward.gaps WHERE state = 'open'`).Scan(&gaps))
	require.Equal(t, "20:20: 30:30: 1, 40:40: 70:70: 3, 80:80: 100:100: 1", gaps)
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT string_agg(DISTINCT cursor::text, ' ') FROM onceward.gaps WHERE state IN ('open', 'repairing')`).Scan(&row))
	require.Equal(t, "-9223372036854775808", row, "from before every seq")
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT concat_ws(' ', kafka_cluster, kafka_met, kafka_gap, epoch, mode) FROM onceward.relay_state`).Scan(&row))
	require.Equal(t, "new t 5 idempotent", row)
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT concat_ws(' ', action, target, reason, requested_by) FROM onceward.relay_actions`).Scan(&row))
	require.Equal(t, "adopt kafka gap from cluster old to new: 5 events in doubt, 1 dead letter open again moved login-"+prefix+"_operator", row)

	code, _, stderr = call(t, "adopt", "--kafka", "continue", "--cluster", "new", "--reason", "again", "--yes")
	require.NotZero(t, code)
	require.Contains(t, stderr, "is bound to Kafka cluster new already")
	fine(t, "adopt", "--kafka", "continue", "--cluster", "old", "--reason", "back", "--yes")
	require.Equal(t, "gap", states()["25"], "what is in doubt stays so")
}
