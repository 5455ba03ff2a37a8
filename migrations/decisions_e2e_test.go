//go:build e2e

package migrations_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
)

const (
	insertState = `INSERT INTO onceward.relay_state (slot, relay, database, system_identifier, timeline, confirmed_lsn, publication)
		VALUES ($1, 'orders', 'd', '1', 1, '0/1', 'p')`
	insertGap = `INSERT INTO onceward.gaps (gap_id, slot, cause, detail, from_snapshot, to_snapshot, events, state)
		VALUES ($1, $2, 'SLOT_MISSING', '', '1:1:', '2:2:', 3, $3)`
	insertLetter = `INSERT INTO onceward.dead_letters (slot, letter_id, namespace, aggregate_type, aggregate_id, event_type, content_type, created_at, tx_id, seq, position,
		error_class, error, state, retry_position) VALUES ($1, $2, 'n', 't', 'a', 'e', 'c', now(), '5', 1, '0/1', 'c', 'e', $3, '0/2')`
)

// sqlState returns how the statement was refused; empty: it was not.
func sqlState(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) string {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql, args...)
	if err == nil {
		return ""
	}
	var pg *pgconn.PgError
	require.ErrorAs(t, err, &pg)
	return pg.Code
}

// Of all pairs of states only those pass that an operator may decide, and what was
// decided is written down with the decision, or not at all.
func TestDecideGap(t *testing.T) {
	pool := testdb.New(t, "15")
	up(t, pool, migrations.Outbox, "orders")
	const decide = "SELECT onceward.decide_gap($1, $2, $3, 'because')"
	may := map[string]string{"open repairing": "gap repair", "open accepted": "gap accept", "accepted repairing": "gap repair", "before repairing": "gap repair"}
	states := []string{"open", "repairing", "repaired", "accepted", "before"}
	for _, from := range states {
		for _, to := range append(states, "gone") {
			id, what := uuid.New(), from+" "+to
			exec(t, pool, insertGap, id, "s", from)
			code := sqlState(t, pool, decide, id, from, to)
			written := scalar[string](t, pool, `SELECT concat_ws(' ', g.state, g.decided_by = session_user, g.decided_why, a.action, a.slot, a.reason, a.requested_by = session_user)
				FROM onceward.gaps g LEFT JOIN onceward.relay_actions a ON a.target LIKE '%' || g.gap_id || '%' WHERE g.gap_id = $1`, id)
			if action, ok := may[what]; ok {
				require.Empty(t, code, what)
				require.Equal(t, to+" t because "+action+" s because t", written, what)
				continue
			}
			require.Equal(t, "22023", code, what)
			require.Equal(t, from, written, what)
		}
	}
	id := uuid.New()
	exec(t, pool, insertGap, id, "s", "before")
	require.Equal(t, "OW006", sqlState(t, pool, decide, id, "open", "repairing"), "it is not as the operator saw it")
	require.Equal(t, "OW006", sqlState(t, pool, decide, uuid.New(), "open", "repairing"), "there is none")
	require.Equal(t, "22023", sqlState(t, pool, decide, id, nil, "repairing"))
	require.Equal(t, "22023", sqlState(t, pool, "SELECT onceward.decide_gap($1, 'before', 'repairing', '')", id))
	require.Equal(t, len(may), scalar[int](t, pool, "SELECT count(*) FROM onceward.relay_actions"))

	leaf := scalar[string](t, pool, "SELECT min(inhrelid::regclass::text) FROM pg_inherits WHERE inhparent = 'onceward.outbox'::regclass")
	bounds := scalar[string](t, pool, "SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid = $1::regclass", leaf)
	exec(t, pool, "CREATE TRIGGER onceward_closed BEFORE INSERT ON "+leaf+" FOR EACH ROW EXECUTE FUNCTION onceward.refuse_insert()")
	exec(t, pool, "ALTER TABLE onceward.outbox DETACH PARTITION "+leaf)
	require.Equal(t, "OW006", sqlState(t, pool, decide, id, "before", "repairing"), "no repair reads what retention drops next")
	open := uuid.New()
	exec(t, pool, insertGap, open, "s", "open")
	require.Empty(t, sqlState(t, pool, decide, open, "open", "repairing"), "a relay waits for it, and retention with it")
	exec(t, pool, "ALTER TABLE onceward.outbox ATTACH PARTITION "+leaf+" "+bounds)
	require.Empty(t, sqlState(t, pool, decide, id, "before", "repairing"))
}

// A relay is forgotten with what nobody would obey any more, and not while its
// slot exists; another one keeps everything.
func TestRetireRelay(t *testing.T) {
	pool := testdb.New(t, "15")
	up(t, pool, migrations.Outbox, "orders")
	slot := scalar[string](t, pool, "SELECT 'retire_' || oid FROM pg_database WHERE datname = current_database()") // slots are of the whole cluster
	for _, of := range []string{slot, "other"} {
		exec(t, pool, insertState, of)
		exec(t, pool, insertGap, uuid.New(), of, "open")
		exec(t, pool, "INSERT INTO onceward.published_snapshots VALUES ($1, '10:20:', now())", of)
		for _, state := range []string{"open", "retrying", "replayed", "discarded"} {
			exec(t, pool, insertLetter, of, uuid.New(), state)
		}
	}
	const retire = "SELECT onceward.retire_relay($1, 'gone')"
	left := func(of string) string {
		return scalar[string](t, pool, `SELECT concat_ws(' ', (SELECT count(*) FROM onceward.relay_state WHERE slot = $1), (SELECT count(*) FROM onceward.gaps WHERE slot = $1),
			(SELECT count(*) FROM onceward.published_snapshots WHERE slot = $1), string_agg(state || COALESCE(' ' || decided_why, ''), ', ' ORDER BY state, decided_why))
			FROM onceward.dead_letters WHERE slot = $1`, of)
	}
	before := left("other")
	exec(t, pool, "SELECT pg_create_physical_replication_slot($1)", slot)
	require.Equal(t, "OW006", sqlState(t, pool, retire, slot), "the slot exists")
	require.Equal(t, before, left(slot))
	exec(t, pool, "SELECT pg_drop_replication_slot($1)", slot)
	require.Equal(t, "22023", sqlState(t, pool, "SELECT onceward.retire_relay($1, NULL)", slot))
	require.Equal(t, 2, scalar[int](t, pool, retire, slot))
	require.Equal(t, "0 0 0 discarded gone, discarded gone, discarded", left(slot))
	require.Equal(t, before, left("other"))
	require.Equal(t, "retire relay orders, 2 dead letters discarded gone true", scalar[string](t, pool,
		"SELECT concat_ws(' ', action, target, reason, (requested_by = session_user)::text) FROM onceward.relay_actions WHERE slot = $1", slot))
	require.Equal(t, "OW006", sqlState(t, pool, retire, slot), "it is forgotten already")
}
