//go:build e2e

package migrations_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/hostile"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
)

// onVersions runs a test on both ends of the supported versions, in a database of its own.
func onVersions(t *testing.T, test func(t *testing.T, pool *pgxpool.Pool)) {
	t.Helper()
	for _, version := range []string{"15", "18"} {
		t.Run(version, func(t *testing.T) { test(t, testdb.New(t, version)) })
	}
}

// What somebody who may create in public plants there: functions that fit our
// calls as well as PostgreSQL's own or better, and operators. All but the
// transaction id answer rightly, so that nothing shows.
const planted = `
CREATE FUNCTION public.hashtextextended(text, integer) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN pg_catalog.hashtextextended($1, $2::bigint); END';
CREATE FUNCTION public.hashtextextended(text, bigint) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN pg_catalog.hashtextextended($1, $2); END';
CREATE FUNCTION public.pg_current_xact_id() RETURNS xid8 IMMUTABLE LANGUAGE sql AS $$ SELECT '3'::xid8 $$;
CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT pg_catalog.clock_timestamp()';
CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT pg_catalog.now()';
CREATE FUNCTION public.octet_length(text) RETURNS integer IMMUTABLE LANGUAGE sql AS 'SELECT pg_catalog.octet_length($1)';
CREATE FUNCTION public.translate(text, text, text) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT pg_catalog.translate($1, $2, $3)';
CREATE FUNCTION public.jsonb_typeof(jsonb) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT pg_catalog.jsonb_typeof($1)';
`

// operators stand in public under the names of those that our CHECKs and indexes use.
var operators = map[string][]string{
	"=":  {"text,text,texteq", `"char","char",chareq`, "boolean,boolean,booleq"},
	"<>": {"boolean,boolean,boolne"},
	">=": {"integer,integer,int4ge", "timestamptz,timestamptz,timestamptz_ge"},
	"<=": {"integer,integer,int4le"},
}

// plant makes a database hostile and returns a pool whose sessions have the path
// that it sets; the pool given, see trusting, keeps PostgreSQL's.
func plant(t *testing.T, pool *pgxpool.Pool) (victim *pgxpool.Pool) {
	t.Helper()
	exec(t, pool, planted)
	for name, forms := range operators {
		for _, form := range forms {
			part := strings.Split(form, ",")
			exec(t, pool, fmt.Sprintf("CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = pg_catalog.%s)", name, part[0], part[1], part[2]))
		}
	}
	exec(t, pool, "ALTER DATABASE "+pool.Config().ConnConfig.Database+" SET search_path = public, pg_catalog")
	conf := pool.Config()
	delete(conf.ConnConfig.RuntimeParams, "search_path")
	own, err := pgxpool.NewWithConfig(t.Context(), conf)
	require.NoError(t, err)
	t.Cleanup(own.Close)
	require.Equal(t, "public, pg_catalog", scalar[string](t, own, "SHOW search_path"))
	require.Equal(t, "3", scalar[string](t, own, "SELECT pg_current_xact_id()::text"), "what was planted is what is called")
	return own
}

// trusting returns a pool that keeps PostgreSQL's own functions first.
func trusting(t *testing.T, pool *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	conf := pool.Config()
	conf.ConnConfig.RuntimeParams["search_path"] = "pg_catalog"
	own, err := pgxpool.NewWithConfig(t.Context(), conf)
	require.NoError(t, err)
	t.Cleanup(own.Close)
	return own
}

func foreign(t *testing.T, pool *pgxpool.Pool) []hostile.Dependency {
	t.Helper()
	found, err := hostile.Foreign(t.Context(), pool)
	require.NoError(t, err)
	return found
}

// requireOwnTransaction: the column that says what is published is PostgreSQL's to fill.
func requireOwnTransaction(t *testing.T, victim *pgxpool.Pool) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), victim, func(tx pgx.Tx) error {
		var right bool
		key, err := outbox.NewKey("orders")
		require.NoError(t, err)
		err = tx.QueryRow(t.Context(), `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type)
VALUES ($1, 'orders', 'order', '1', 'OrderPaid') RETURNING tx_id OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id()`, key.UUID()).Scan(&right)
		require.True(t, right, "tx_id is the transaction's own")
		return err
	}))
}

// TestNothingIsBoundToWhatWasPlanted: whatever lies in public, and whatever path
// the database sets, migrate up binds our tables to PostgreSQL's functions.
func TestNothingIsBoundToWhatWasPlanted(t *testing.T) {
	onVersions(t, func(t *testing.T, pool *pgxpool.Pool) {
		pool = trusting(t, pool)
		victim := plant(t, pool)
		for _, side := range []migrations.Side{migrations.Outbox, migrations.Consumer} {
			_, err := migrator(t, victim, side).Up(t.Context())
			require.NoError(t, err)
		}
		require.Empty(t, foreign(t, pool))
		requireOwnTransaction(t, victim)

		// The function keeps out what it is called with: a caller's path is not its own.
		key, err := outbox.NewKey("orders")
		require.NoError(t, err)
		for _, name := range []string{"strpos(text, text)", "starts_with(text, text)", "left(text, integer)", "octet_length(bytea)", "to_regclass(text)"} {
			exec(t, pool, "CREATE FUNCTION public."+name+" RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'planted'; END $$")
		}
		require.Equal(t, "enqueued", scalar[string](t, victim, `SELECT onceward.enqueue($1, 'order', '1', 'OrderPaid', 'x', headers => '{"a": "b"}'::jsonb)`, key.String()))
		requireOwnTransaction(t, victim)
	})
}

// install brings a database to a version by the migrations' text as it was before
// names were qualified, in sessions that nobody pinned.
func install(t *testing.T, pool *pgxpool.Pool, side migrations.Side, version int64) {
	t.Helper()
	names, err := filepath.Glob(string(side) + "/*.sql")
	require.NoError(t, err)
	old := fstest.MapFS{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		old[filepath.Base(name)] = &fstest.MapFile{Data: []byte(strings.NewReplacer("pg_catalog.", "", "0::bigint", "0").Replace(string(text)))}
	}
	exec(t, pool, "CREATE SCHEMA IF NOT EXISTS onceward")
	db := stdlib.OpenDBFromPool(pool)
	defer func() { require.NoError(t, db.Close()) }()
	p, err := goose.NewProvider(goose.DialectPostgres, db, old, goose.WithTableName("onceward."+string(side)+"_migrations"))
	require.NoError(t, err)
	_, err = p.UpTo(t.Context(), version)
	require.NoError(t, err)
}

// TestUpMendsWhatWasBound: a database that an older release installed over what
// somebody had planted.
func TestUpMendsWhatWasBound(t *testing.T) {
	onVersions(t, func(t *testing.T, pool *pgxpool.Pool) {
		pool = trusting(t, pool)
		victim := plant(t, pool)
		install(t, victim, migrations.Outbox, 4)
		install(t, victim, migrations.Consumer, 2)
		today := partition.Span{First: time.Now(), Last: time.Now()}
		_, err := partition.Ensure(t.Context(), pool, "onceward.outbox", "id", today)
		require.NoError(t, err)
		exec(t, pool, `INSERT INTO onceward.dead_letters (slot, letter_id, namespace, aggregate_type, aggregate_id, event_type, content_type, created_at, tx_id, seq, position, error_class, error)
VALUES ('s', $1, 'n', 't', 'a', 'e', 'c', pg_catalog.now(), '3', 1, '0/1', 'c', 'e')`, outbox.FirstID(time.Now()))
		kinds := make(map[string]int)
		for _, d := range foreign(t, pool) {
			require.True(t, d.Rebuilt(), "%s", d)
			kinds[d.Kind]++
		}
		require.Greater(t, kinds["default value"], 15)
		require.Greater(t, kinds["table constraint"], 8)
		require.Greater(t, kinds["index"], 4)
		require.Contains(t, fmt.Sprint(foreign(t, pool)), "index onceward.dead_letters_waiting leans on function public.hashtextextended(")
		require.Contains(t, fmt.Sprint(foreign(t, pool)), "default value for onceward.outbox_migrations.tstamp leans on function public.now()")

		plan, err := migrator(t, victim, migrations.Outbox).UpSQL(t.Context())
		require.NoError(t, err)
		require.Equal(t, "SET search_path = pg_catalog, pg_temp", plan[0])
		require.Contains(t, strings.Join(plan, "\n"), "DROP INDEX IF EXISTS onceward.dead_letters_waiting")
		_, err = migrator(t, victim, migrations.Outbox).Up(t.Context())
		require.ErrorIs(t, err, migrations.ErrHostileDependency)
		require.ErrorContains(t, err, "run this command for that side", "the consumer's tables are here too")
		for _, d := range foreign(t, pool) {
			require.NotContains(t, d.Object, "onceward.outbox")
			require.NotContains(t, d.Object, "onceward.dead_letters")
		}
		_, err = migrator(t, victim, migrations.Consumer).Up(t.Context())
		require.NoError(t, err)
		require.Empty(t, foreign(t, pool))
		_, err = migrator(t, victim, migrations.Outbox).Up(t.Context())
		require.NoError(t, err)
		requireOwnTransaction(t, victim)
		require.Equal(t, 1, scalar[int](t, pool, "SELECT count(*) FROM onceward.dead_letters"))

		// The newest migration too, where somebody ran its text by hand.
		text, err := os.ReadFile("outbox/00005_secure.sql")
		require.NoError(t, err)
		byHand, _, _ := strings.Cut(strings.ReplaceAll(string(text), "pg_catalog.", ""), "-- +goose Down")
		exec(t, victim, byHand)
		require.Contains(t, fmt.Sprint(foreign(t, pool)), "table constraint outbox_namespace on onceward.outbox leans on function public.")
		_, err = migrator(t, victim, migrations.Outbox).Up(t.Context())
		require.NoError(t, err)
		require.Empty(t, foreign(t, pool))
		requireRulesHold(t, pool)
	})
}

// TestRebuiltIsWhatWasInstalled: a database that was mended has the same
// definitions as one that needed nothing.
func TestRebuiltIsWhatWasInstalled(t *testing.T) {
	const definitions = `SELECT string_agg(d, E'\n' ORDER BY d) FROM (
SELECT pg_get_indexdef(indexrelid) d FROM pg_index JOIN pg_class c ON c.oid = indrelid WHERE relnamespace = 'onceward'::regnamespace
UNION ALL SELECT conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = 'onceward'::regnamespace
UNION ALL SELECT adrelid::regclass || ' ' || adnum || ' ' || pg_get_expr(adbin, adrelid) FROM pg_attrdef JOIN pg_class c ON c.oid = adrelid WHERE relnamespace = 'onceward'::regnamespace) x`
	pool := trusting(t, newDatabase(t))
	sides := []migrations.Side{migrations.Outbox, migrations.Consumer}
	for _, side := range sides {
		up(t, pool, side, "")
	}
	want := scalar[string](t, pool, definitions)
	exec(t, pool, planted)
	exec(t, pool, `ALTER TABLE onceward.outbox ALTER tx_id SET DEFAULT public.pg_current_xact_id(); ALTER TABLE onceward.fences ALTER created_at SET DEFAULT public.clock_timestamp()`)
	_, err := migrator(t, pool, migrations.Outbox).Up(t.Context())
	require.ErrorIs(t, err, migrations.ErrHostileDependency)
	up(t, pool, migrations.Consumer, "")
	up(t, pool, migrations.Outbox, "")
	require.Equal(t, want, scalar[string](t, pool, definitions))
}

// requireRulesHold: each rule is validated, on the table and on each partition.
func requireRulesHold(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	require.Equal(t, 8, scalar[int](t, pool, `SELECT count(*) FROM pg_constraint WHERE conrelid = 'onceward.outbox'::regclass AND contype = 'c'`))
	require.Zero(t, scalar[int](t, pool, `SELECT count(*) FROM pg_constraint WHERE connamespace = 'onceward'::regnamespace AND NOT convalidated`))
	require.Zero(t, scalar[int](t, pool, `SELECT count(*) FROM pg_class c JOIN pg_inherits ON inhrelid = c.oid WHERE inhparent = 'onceward.outbox'::regclass AND relchecks <> 8`))
}

// TestWhatIsNotOursIsRefused: what no command of ours makes anew stops migrate up
// before anything is changed, by name.
func TestWhatIsNotOursIsRefused(t *testing.T) {
	const function = "CREATE FUNCTION public.spy(text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN true; END'; "
	for name, tc := range map[string]struct{ make, says, drop string }{
		"trigger": {
			"CREATE FUNCTION public.seen() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; CREATE TRIGGER seen BEFORE INSERT ON onceward.outbox FOR EACH ROW EXECUTE FUNCTION public.seen()",
			"trigger seen on onceward.outbox leans on function public.seen()", "DROP TRIGGER seen ON onceward.outbox",
		},
		"policy": {"CREATE POLICY p ON onceward.outbox USING (public.spy(namespace))", "policy p on onceward.outbox leans on function public.spy(", "DROP POLICY p ON onceward.outbox"},
		"view":   {"CREATE VIEW onceward.v AS SELECT public.spy(namespace) FROM onceward.outbox", `rule "_RETURN" on onceward.v leans on function public.spy(`, "DROP VIEW onceward.v"},
		"rule": {
			"CREATE RULE r AS ON INSERT TO onceward.controls WHERE public.spy(new.reason) DO ALSO NOTHING",
			"rule r on onceward.controls leans on function public.spy(", "DROP RULE r ON onceward.controls",
		},
		"function": {"CREATE FUNCTION onceward.f() RETURNS boolean LANGUAGE sql BEGIN ATOMIC SELECT public.spy('a'); END", "function onceward.f() leans on function public.spy(", "DROP FUNCTION onceward.f()"},
		"domain": {
			"CREATE DOMAIN public.word AS text CHECK (public.spy(VALUE)); ALTER TABLE onceward.relay_state ADD COLUMN w public.word",
			"table column onceward.relay_state.w leans on type public.word", "ALTER TABLE onceward.relay_state DROP COLUMN w",
		},
		"statistics":    {"CREATE STATISTICS onceward.s ON (public.spy(namespace)), namespace FROM onceward.dead_letters", "statistics object onceward.s leans on function public.spy(", "DROP STATISTICS onceward.s"},
		"foreign index": {"CREATE INDEX mine ON onceward.dead_letters (public.spy(namespace))", "index onceward.mine leans on function public.spy(", "DROP INDEX onceward.mine"},
		"foreign check": {"ALTER TABLE onceward.outbox ADD CONSTRAINT mine CHECK (public.spy(namespace))", "table constraint mine on onceward.outbox leans on function public.spy(", "ALTER TABLE onceward.outbox DROP CONSTRAINT mine"},
	} {
		t.Run(name, func(t *testing.T) {
			pool := newDatabase(t)
			up(t, pool, migrations.Outbox, "")
			exec(t, pool, function+tc.make)
			_, err := migrator(t, pool, migrations.Outbox, relay("orders")).Up(t.Context())
			require.ErrorIs(t, err, migrations.ErrHostileDependency)
			require.ErrorContains(t, err, "(HOSTILE_DEPENDENCY): "+tc.says)
			require.Zero(t, scalar[int](t, pool, "SELECT count(*) FROM pg_publication"), "nothing was done behind it")
			exec(t, pool, tc.drop)
			_, err = migrator(t, pool, migrations.Outbox, relay("orders")).Up(t.Context())
			require.NoError(t, err)
		})
	}
	t.Run("a function of schema onceward is the owner's", func(t *testing.T) {
		pool := newDatabase(t)
		up(t, pool, migrations.Outbox, "")
		exec(t, pool, "CREATE FUNCTION onceward.seen() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; CREATE TRIGGER seen BEFORE INSERT ON onceward.outbox FOR EACH ROW EXECUTE FUNCTION onceward.seen()")
		up(t, pool, migrations.Outbox, "orders")
	})
}

// TestOldRowsKeepARuleNotValid: rows that an older release let in stop no
// migration. Their rule holds for new rows, is named, and is validated when they
// have gone.
func TestOldRowsKeepARuleNotValid(t *testing.T) {
	onVersions(t, func(t *testing.T, pool *pgxpool.Pool) {
		install(t, pool, migrations.Outbox, 4)
		_, err := partition.Ensure(t.Context(), pool, "onceward.outbox", "id", partition.Span{First: time.Now(), Last: time.Now()})
		require.NoError(t, err)
		bad := func() error {
			key, err := outbox.NewKey("orders")
			require.NoError(t, err)
			_, err = pool.Exec(t.Context(), `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, headers)
VALUES ($1, 'Not A Namespace', 'order', '1', 'OrderPaid', '{"a": ["b"]}')`, key.UUID())
			return err
		}
		require.NoError(t, bad())
		res, err := migrator(t, pool, migrations.Outbox).Up(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"outbox_headers", "outbox_namespace"}, res.NotValid)
		require.Len(t, res.Partitions, migrations.DaysAhead, "the table takes partitions meanwhile")
		require.Equal(t, 6, scalar[int](t, pool, `SELECT count(*) FROM pg_constraint WHERE conrelid = 'onceward.outbox'::regclass AND contype = 'c' AND convalidated`))
		require.ErrorContains(t, bad(), "outbox_", "and takes no more of them")

		res, err = migrator(t, pool, migrations.Outbox).Up(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"outbox_headers", "outbox_namespace"}, res.NotValid, "it looks again each time")
		exec(t, pool, "TRUNCATE onceward.outbox")
		res, err = migrator(t, pool, migrations.Outbox).Up(t.Context())
		require.NoError(t, err)
		require.Empty(t, res.NotValid)
		requireRulesHold(t, pool)
	})
}

// TestUpGivesWayToWriters: a transaction that has written an event holds the rules
// up, and not, behind them, all other writers.
func TestUpGivesWayToWriters(t *testing.T) {
	pool := newDatabase(t)
	install(t, pool, migrations.Outbox, 4)
	_, err := partition.Ensure(t.Context(), pool, "onceward.outbox", "id", partition.Span{First: time.Now(), Last: time.Now()})
	require.NoError(t, err)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context())
	_, err = tx.Exec(t.Context(), insertRow, outbox.FirstID(time.Now()))
	require.NoError(t, err)
	hasty := migrator(t, pool, migrations.Outbox, func(c *migrations.Config) { c.LockTimeout = time.Millisecond })
	_, err = hasty.Up(t.Context())
	require.ErrorContains(t, err, "a transaction has held its lock for more than 1ms: end it")

	done := make(chan error, 1)
	patient := migrator(t, pool, migrations.Outbox)
	go func() {
		_, err := patient.Up(t.Context())
		done <- err
	}()
	require.Eventually(t, func() bool {
		return scalar[int](t, pool, "SELECT count(*) FROM pg_locks WHERE relation = 'onceward.outbox'::regclass AND NOT granted") == 1
	}, 10*time.Second, 10*time.Millisecond, "it waits for the lock")
	key, err := outbox.NewKey("orders")
	require.NoError(t, err)
	require.NoError(t, pool.QueryRow(t.Context(), insertRow, key.UUID()).Scan(new(int64)))
	require.Empty(t, done, "the writer came first")
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, <-done)
	requireRulesHold(t, pool)
}

// TestHugeRow: one INSERT of 300 MB by a writer is refused by the table, so that
// no relay ever has to hold it in memory.
func TestHugeRow(t *testing.T) {
	onVersions(t, func(t *testing.T, pool *pgxpool.Pool) {
		up(t, pool, migrations.Outbox, "")
		insert := `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload)
VALUES ($1, 'orders', 'order', '1', 'OrderPaid', pg_catalog.convert_to(pg_catalog.repeat('x', $2), 'UTF8'))`
		key, err := outbox.NewKey("orders")
		require.NoError(t, err)
		_, err = pool.Exec(t.Context(), insert, key.UUID(), 300<<20)
		require.ErrorContains(t, err, `"outbox_payload"`)
		_, err = pool.Exec(t.Context(), insert, key.UUID(), outbox.MaxPayload+1)
		require.ErrorContains(t, err, `"outbox_payload"`)
		exec(t, pool, insert, key.UUID(), outbox.MaxPayload)
	})
}
