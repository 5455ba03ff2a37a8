//go:build e2e

package cdc_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/testdb"
)

const (
	eventSQL = `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload, headers)
		VALUES ($1, 'shop', 'order', 'o-1', 'OrderPaid', '{}', '{"tenant": "a"}')`
	replaySQL = `INSERT INTO onceward.replays (replay_id, id, namespace, aggregate_type, aggregate_id, event_type, payload, content_type, created_at, mode, replay_group, topic, reason)
		VALUES ($1, '0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a', 'shop', 'order', 'o-1', 'OrderPaid', '\x00ff', 'text/plain', '2026-01-02 03:04:05.678901+00', 'reprocess', 'billing', 'elsewhere', 'a hole')`
	retrySQL    = `INSERT INTO onceward.controls (control_id, action, namespace, aggregate_type, aggregate_id, reason) VALUES ($1, 'retry', 'shop', 'order', '', 'mended')`
	forgedEvent = `INSERT INTO onceward.outbox (id, tx_id, namespace, aggregate_type, aggregate_id, event_type, payload)
		VALUES ($1, '4', 'shop', 'order', 'o-1', 'OrderPaid', '{}')`
	editSQL = `INSERT INTO onceward.controls (control_id, action, letter_id, payload, headers, reason) VALUES ($1, 'edit', '0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a', 'mended', '{"a": "b"}', 'mended')`
)

// tombstone is an edit that makes one of the letter.
const tombstoneSQL = `INSERT INTO onceward.controls (control_id, action, letter_id, payload_null, reason) VALUES ($1, 'edit', '0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a', true, 'mended')`

func (d *database) event(on querier) row  { return d.insert(on, cdc.KindEvent, eventSQL) }
func (d *database) replay(on querier) row { return d.insert(on, cdc.KindReplay, replaySQL) }
func (d *database) retry(on querier) row  { return d.insert(on, cdc.KindControl, retrySQL) }
func (d *database) edit(on querier) row   { return d.insert(on, cdc.KindControl, editSQL) }

func begin(t *testing.T, on interface {
	Begin(ctx context.Context) (pgx.Tx, error)
},
) pgx.Tx {
	t.Helper()
	tx, err := on.Begin(t.Context())
	require.NoError(t, err)
	return tx
}

// The operator's rows come in commit order among the events, however their
// transactions overlap, and whole.
func TestKindsArriveInCommitOrder(t *testing.T) {
	onVersions(t, func(t *testing.T, d *database) {
		var want []row
		for range 20 {
			early, late := begin(t, d.writer), begin(t, d.operator)
			a, b := d.event(early), d.replay(late)
			c, e, f := d.event(early), d.retry(late), d.edit(late)
			rolled := begin(t, d.operator)
			d.replay(rolled)
			require.NoError(t, rolled.Rollback(t.Context()))
			require.NoError(t, late.Commit(t.Context())) // began later, commits first
			alone := d.event(d.writer)
			require.NoError(t, early.Commit(t.Context()))
			want = append(want, b, e, f, alone, a, c, d.retry(d.operator), d.replay(d.operator))
		}
		want = append(want, d.insert(d.operator, cdc.KindControl, tombstoneSQL))
		items := d.read(len(want))
		require.Equal(t, want, rowsOf(items))
		require.True(t, items[len(items)-1].Control.PayloadNull)
		for _, it := range items[:len(items)-1] {
			require.NoError(t, it.Bad)
			require.NoError(t, it.Incomplete)
			require.NotZero(t, it.Commit)
			require.NotZero(t, it.CommitTime)
			d.requireWhole(it)
		}
	})
}

func (d *database) requireWhole(it cdc.Item) {
	t := d.t
	switch it.Kind {
	case cdc.KindReplay:
		require.Equal(t, &cdc.Replay{ID: it.Replay.ID, Mode: cdc.ModeReprocess, Group: "billing", Topic: "elsewhere", Reason: "a hole", RequestedBy: d.user}, it.Replay)
		require.Equal(t, uuid.MustParse("0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a"), it.Row.ID)
		require.Equal(t, []byte{0, 255}, it.Row.Payload)
		require.Equal(t, "text/plain", it.Row.ContentType)
		require.Equal(t, time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC), it.Row.CreatedAt)
		require.NotZero(t, it.Row.Seq)
	case cdc.KindControl:
		c := *it.Control
		require.NotZero(t, c.TxID)
		require.NotZero(t, c.Seq)
		want := cdc.Control{ID: c.ID, Action: cdc.ActionRetry, Namespace: "shop", AggregateType: "order", AggregateID: []byte{}, Reason: "mended", RequestedBy: d.user, TxID: c.TxID, Seq: c.Seq}
		if c.Action == cdc.ActionEdit {
			want = cdc.Control{ID: c.ID, Action: cdc.ActionEdit, LetterID: uuid.MustParse("0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a"), Payload: []byte("mended"),
				Headers: []byte(`{"a": "b"}`), Reason: "mended", RequestedBy: d.user, TxID: c.TxID, Seq: c.Seq}
		}
		require.Equal(t, want, c)
	default:
		require.Equal(t, "OrderPaid", it.Row.Type)
		require.JSONEq(t, `{"tenant": "a"}`, string(it.Row.Headers))
	}
}

// What only the tables' owner or a superuser can write arrives as a bad row in
// its place, with its id; the rows around it suffer nothing.
func TestForgedRowsArriveAsBad(t *testing.T) {
	onVersions(t, func(t *testing.T, d *database) {
		forged := func(sql string) string {
			return strings.NewReplacer("(replay_id,", "(replay_id, tx_id,", "(control_id,", "(control_id, tx_id,", "($1,", "($1, '4',").Replace(sql)
		}
		d.execute(`ALTER TABLE onceward.outbox ALTER COLUMN aggregate_id DROP NOT NULL`)
		d.execute(`ALTER TABLE onceward.controls DROP CONSTRAINT controls_action_check`)
		bad := map[string]string{}
		var want []row
		for _, tc := range []struct {
			kind      cdc.Kind
			sql, says string
		}{
			{cdc.KindEvent, forgedEvent, "tx_id 4 is not of the transaction"},
			{cdc.KindReplay, forged(replaySQL), "tx_id 4 is not of the transaction"},
			{cdc.KindControl, forged(retrySQL), "tx_id 4 is not of the transaction"},
			{cdc.KindEvent, strings.Replace(eventSQL, "'o-1'", "NULL", 1), "column aggregate_id is NULL"},
			{cdc.KindEvent, strings.NewReplacer("(id,", "(id, created_at,", "($1,", "($1, '-infinity',").Replace(eventSQL), "column created_at is infinite"},
			{cdc.KindReplay, strings.Replace(replaySQL, "2026-01-02 03:04:05.678901+00", "4713-01-01 00:00:00+00 BC", 1), "column created_at is infinite or absurd"},
			{cdc.KindControl, strings.Replace(retrySQL, "'retry'", "'forget'", 1), `column action is "forget"`},
		} {
			r := d.insert(d.pool, tc.kind, tc.sql)
			bad[r.id.String()] = tc.says
			want = append(want, r, d.event(d.writer))
		}
		items := d.read(len(want))
		require.Equal(t, want, rowsOf(items))
		for i, it := range items {
			says, is := bad[want[i].id.String()]
			if !is {
				require.NoError(t, it.Bad)
				d.requireWhole(it)
				continue
			}
			require.ErrorContains(t, it.Bad, says)
			require.NoError(t, it.Incomplete)
		}
	})
}

// A needed column that is renamed, retyped or dropped and comes back: the rows in
// between are incomplete, in their place, though the table looks as it must when
// they are read; in one transaction too.
func TestRowsOfAnotherLayoutArriveIncomplete(t *testing.T) {
	onVersions(t, func(t *testing.T, d *database) {
		var want []row
		lacks := map[string]string{}
		add := func(column string, r row) {
			want = append(want, r)
			if column != "" {
				lacks[r.id.String()] = column
			}
		}
		add("", d.event(d.writer))
		d.execute(`ALTER TABLE onceward.outbox RENAME COLUMN event_type TO kind`)
		add("event_type", d.insert(d.pool, cdc.KindEvent, strings.Replace(eventSQL, "event_type", "kind", 1)))
		add("", d.replay(d.operator))
		d.execute(`ALTER TABLE onceward.outbox RENAME COLUMN kind TO event_type`)
		add("", d.event(d.writer))
		d.execute(`ALTER TABLE onceward.outbox DROP CONSTRAINT outbox_headers, ALTER COLUMN headers TYPE json`)
		add("headers", d.event(d.writer))
		d.execute(`ALTER TABLE onceward.outbox ALTER COLUMN headers TYPE jsonb`)
		d.execute(`ALTER TABLE onceward.replays RENAME COLUMN mode TO manner`)
		add("mode", d.insert(d.pool, cdc.KindReplay, strings.Replace(replaySQL, " mode,", " manner,", 1)))
		d.execute(`ALTER TABLE onceward.replays RENAME COLUMN manner TO mode`)
		add("", d.replay(d.operator))
		d.execute(`ALTER TABLE onceward.controls DROP COLUMN aggregate_type`)
		add("aggregate_type", d.edit(d.pool))
		d.execute(`ALTER TABLE onceward.controls ADD COLUMN aggregate_type text; GRANT INSERT (aggregate_type) ON onceward.controls TO ` + d.operatorRole)
		tx := begin(t, d.pool)
		add("", d.retry(tx))
		d.on(tx, `ALTER TABLE onceward.controls RENAME COLUMN action TO verb`)
		add("action", d.insert(tx, cdc.KindControl, strings.Replace(retrySQL, "action", "verb", 1)))
		d.on(tx, `ALTER TABLE onceward.controls RENAME COLUMN verb TO action`)
		add("", d.retry(tx))
		require.NoError(t, tx.Commit(t.Context()))
		add("", d.edit(d.operator))
		items := d.read(len(want))
		require.Equal(t, want, rowsOf(items))
		for i, it := range items {
			require.NoError(t, it.Bad)
			column := lacks[want[i].id.String()]
			if column == "" {
				require.NoError(t, it.Incomplete)
				d.requireWhole(it)
				continue
			}
			var layout *cdc.LayoutError
			require.ErrorAs(t, it.Incomplete, &layout, column)
			require.Equal(t, column, layout.Column)
		}
	})
}

// A table whose rows nobody could tell apart stops the stream, by its name, and
// the slot stays before them.
func TestARowWithoutIdentityStops(t *testing.T) {
	onVersions(t, func(t *testing.T, d *database) {
		first := d.event(d.writer)
		d.execute(`ALTER TABLE onceward.outbox RENAME COLUMN tx_id TO xid`)
		d.event(d.pool)
		d.execute(`ALTER TABLE onceward.outbox RENAME COLUMN xid TO tx_id`)
		d.event(d.writer)
		for range 2 {
			items, err := d.readUntil(func([]cdc.Item) bool { return false })
			var decode *cdc.DecodeError
			require.ErrorAs(t, err, &decode)
			require.ErrorContains(t, err, "column tx_id (xid8) is missing")
			require.LessOrEqual(t, len(items), 1)
			if len(items) == 1 {
				require.Equal(t, []row{first}, rowsOf(items))
			}
		}
	})
}

// The start-up check demands all three tables, as they must be.
func TestCheckDemandsAllTables(t *testing.T) {
	onVersions(t, func(t *testing.T, d *database) {
		for _, tc := range []struct{ spoil, code, says, mend string }{
			{`ALTER PUBLICATION {p} DROP TABLE onceward.replays`, "PUBLICATION_TABLES", "covers 2 of the 3 tables", ""},
			{`ALTER PUBLICATION {p} DROP TABLE onceward.controls`, "PUBLICATION_TABLES", "covers 2 of the 3 tables", ""},
			{`ALTER TABLE onceward.replays RENAME COLUMN replay_group TO g`, "COLUMN", "onceward.replays: column replay_group", `ALTER TABLE onceward.replays RENAME COLUMN g TO replay_group`},
			{`ALTER TABLE onceward.controls ALTER COLUMN reason TYPE bytea USING ''`, "COLUMN", "onceward.controls: column reason has type", `ALTER TABLE onceward.controls ALTER COLUMN reason TYPE text USING ''`},
			{`ALTER TABLE onceward.controls RENAME TO words`, "TABLE_MISSING", "table onceward.controls does not exist", `ALTER TABLE onceward.words RENAME TO controls`},
		} {
			replace := strings.NewReplacer("{p}", d.cfg.Publication)
			d.execute(replace.Replace(tc.spoil))
			err := d.check()
			var start *cdc.StartError
			require.ErrorAs(t, err, &start, tc.spoil)
			require.Equal(t, tc.code, start.Code)
			require.Contains(t, start.What, tc.says)
			if tc.mend == "" {
				tc.mend = start.Cure
			}
			d.execute(tc.mend)
			require.NoError(t, d.check(), tc.mend)
		}
	})
}

// TestCheckRefusesAPooler, also one that lets the connection pass.
func TestCheckRefusesAPooler(t *testing.T) {
	onVersions(t, func(t *testing.T, d *database) {
		conn, err := pgx.Connect(t.Context(), testdb.PgBouncer(t, d.pool)+"&default_query_exec_mode=exec")
		require.NoError(t, err)
		defer conn.Close(context.WithoutCancel(t.Context()))
		var start *cdc.StartError
		require.ErrorAs(t, cdc.Check(t.Context(), conn, d.cfg), &start)
		require.Equal(t, "POOLER", start.Code)
	})
}

// The rights of the relay's role are enough, each of them is needed, and what is
// printed gives it back. A table that is missing is named.
func TestCheckDemandsTheRelaysRights(t *testing.T) {
	onVersions(t, func(t *testing.T, d *database) {
		role := strings.Replace(d.operatorRole, "_operator", "_relay", 1)
		relay, err := d.as(role).Acquire(t.Context())
		require.NoError(t, err)
		defer relay.Release()
		check := func() error { return cdc.Check(t.Context(), relay.Conn(), d.cfg) }
		require.NoError(t, check())
		const rightsOf = `SELECT string_agg(table_name || ' ' || privilege_type, ', ' ORDER BY table_name, privilege_type) FROM information_schema.role_table_grants
			WHERE grantee = $1 AND table_schema = 'onceward'`
		var byRoles, byHand string
		require.NoError(t, d.pool.QueryRow(t.Context(), rightsOf, role).Scan(&byRoles))
		refused := func() (what, grants string) {
			var start *cdc.StartError
			require.ErrorAs(t, check(), &start)
			require.Equal(t, "RIGHTS", start.Code)
			_, grants, byHand := strings.Cut(start.Cure, "by hand: ")
			require.True(t, byHand, start.Cure)
			return start.What, grants
		}
		// It runs without the schema's version and without writing how it does; who gives
		// rights by hand gives these too.
		rows, err := d.pool.Query(t.Context(), `SELECT table_name::text, privilege_type::text FROM information_schema.role_table_grants
			WHERE grantee = $1 AND table_schema = 'onceward' AND table_name NOT IN ('outbox_migrations', 'relay_health')`, role)
		require.NoError(t, err)
		rights, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ Table, Privilege string }])
		require.NoError(t, err)
		require.Greater(t, len(rights), 30)
		for _, held := range rights {
			d.execute("REVOKE " + held.Privilege + " ON onceward." + held.Table + " FROM " + role)
			what, grants := refused()
			require.Contains(t, what, "has no "+held.Privilege+" on onceward."+held.Table)
			d.execute(grants)
			require.NoError(t, check())
		}
		d.execute("REVOKE USAGE ON SCHEMA onceward FROM " + role)
		_, grants := refused()
		d.execute(grants)
		require.NoError(t, check())
		d.execute("REVOKE ALL ON ALL TABLES IN SCHEMA onceward FROM " + role)
		_, grants = refused()
		d.execute(grants)
		require.NoError(t, d.pool.QueryRow(t.Context(), rightsOf, role).Scan(&byHand))
		require.Equal(t, byRoles, byHand, "the GRANTs that are printed are those of migrate roles")
		d.execute(`DROP TABLE onceward.control_results`)
		var start *cdc.StartError
		require.ErrorAs(t, check(), &start)
		require.Equal(t, "TABLE_MISSING", start.Code)
	})
}
