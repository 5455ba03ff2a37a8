//go:build e2e

package migrations_test

import (
	"context"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
)

func migrator(t *testing.T, pool *pgxpool.Pool, side migrations.Side, change ...func(*migrations.Config)) *migrations.Migrator {
	t.Helper()
	cfg := migrations.Config{Pool: pool, Side: side}
	for _, c := range change {
		c(&cfg)
	}
	m, err := migrations.New(cfg)
	require.NoError(t, err)
	return m
}

func relay(name string) func(*migrations.Config) {
	return func(c *migrations.Config) { c.Relay = name }
}

func at(now time.Time) func(*migrations.Config) {
	return func(c *migrations.Config) { c.Now = func() time.Time { return now } }
}

func scalar[T any](t *testing.T, pool *pgxpool.Pool, query string, args ...any) T {
	t.Helper()
	var v T
	require.NoError(t, pool.QueryRow(t.Context(), query, args...).Scan(&v))
	return v
}

func exec(t *testing.T, pool *pgxpool.Pool, query string, args ...any) {
	t.Helper()
	_, err := pool.Exec(t.Context(), query, args...)
	require.NoError(t, err)
}

const insertRow = `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type)
VALUES ($1, 'orders', 'order', '1', 'OrderPaid') RETURNING seq`

func TestUpTwiceThenDown(t *testing.T) {
	pool := newDatabase(t)
	m := migrator(t, pool, migrations.Outbox, relay("orders"))

	res, err := m.Up(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 0, res.From)
	st, err := m.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, st.Latest, res.To)
	require.Len(t, res.Partitions, migrations.DaysBack+1+migrations.DaysAhead)
	require.Equal(t, "onceward_orders", res.Publication)
	require.NoError(t, migrations.Check(t.Context(), pool, migrations.Outbox))

	res, err = m.Up(t.Context())
	require.NoError(t, err)
	require.Equal(t, migrations.Result{From: st.Latest, To: st.Latest}, res)

	res, err = m.Down(t.Context())
	require.NoError(t, err)
	require.Equal(t, st.Latest, res.From)
	require.EqualValues(t, 0, res.To)
	require.Equal(t, []string{"publication onceward_orders", "schema onceward"}, res.Dropped)
	require.Zero(t, scalar[int](t, pool, "SELECT count(*) FROM pg_namespace WHERE nspname = 'onceward'"))
	require.Zero(t, scalar[int](t, pool, "SELECT count(*) FROM pg_publication"))
	require.ErrorIs(t, migrations.Check(t.Context(), pool, migrations.Outbox), migrations.ErrOlderSchema)

	_, err = m.Down(t.Context())
	require.NoError(t, err, "down of nothing is nothing")
	_, err = m.Up(t.Context())
	require.NoError(t, err)
}

func TestBothSidesInOneDatabase(t *testing.T) {
	pool := newDatabase(t)
	out, in := migrator(t, pool, migrations.Outbox), migrator(t, pool, migrations.Consumer)
	for _, m := range []*migrations.Migrator{out, in} {
		_, err := m.Up(t.Context())
		require.NoError(t, err)
	}
	res, err := out.Down(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"schema onceward: not empty"}, res.Kept)
	require.NoError(t, migrations.Check(t.Context(), pool, migrations.Consumer))
	require.Equal(t, 22, scalar[int](t, pool, "SELECT count(*) FROM pg_inherits WHERE inhparent = 'onceward.processed_events'::regclass"))

	res, err = in.Down(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"schema onceward"}, res.Dropped)
}

func TestUpBesideAForeignGooseTable(t *testing.T) {
	pool := newDatabase(t)
	db := stdlib.OpenDBFromPool(pool)
	defer func() { require.NoError(t, db.Close()) }()
	app, err := goose.NewProvider(goose.DialectPostgres, db, fstest.MapFS{
		"00007_app.sql": {Data: []byte("-- +goose Up\nCREATE TABLE public.app (id int);\n-- +goose Down\nDROP TABLE public.app;\n")},
	})
	require.NoError(t, err)
	_, err = app.Up(t.Context())
	require.NoError(t, err)

	m := migrator(t, pool, migrations.Outbox)
	_, err = m.Up(t.Context())
	require.NoError(t, err)
	_, err = m.Down(t.Context())
	require.NoError(t, err)
	version, err := app.GetDBVersion(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 7, version)
	require.Equal(t, 2, scalar[int](t, pool, "SELECT count(*) FROM goose_db_version"), "the zero row and 7")
}

func TestNewerSchemaIsRefused(t *testing.T) {
	pool := newDatabase(t)
	m := migrator(t, pool, migrations.Outbox)
	_, err := m.Up(t.Context())
	require.NoError(t, err)
	exec(t, pool, "INSERT INTO onceward.outbox_migrations (version_id, is_applied) VALUES (99, true)")

	for name, run := range map[string]func(context.Context) error{
		"up":      func(ctx context.Context) error { _, err := m.Up(ctx); return err },
		"down":    func(ctx context.Context) error { _, err := m.Down(ctx); return err },
		"dry up":  func(ctx context.Context) error { _, err := m.UpSQL(ctx); return err },
		"program": func(ctx context.Context) error { return migrations.Check(ctx, pool, migrations.Outbox) },
	} {
		err := run(t.Context())
		require.ErrorIs(t, err, migrations.ErrNewerSchema, name)
		require.ErrorContains(t, err, "is at version 99, this binary knows up to ", name)
	}
	st, err := m.Status(t.Context())
	require.NoError(t, err, "status shows it")
	require.EqualValues(t, 99, st.Version)
}

func TestConcurrentUpsDoTheWorkOnce(t *testing.T) {
	pool := newDatabase(t)
	const runs = 4
	results, errs := make(chan migrations.Result, runs), make(chan error, runs)
	for i := range runs {
		side := []migrations.Side{migrations.Outbox, migrations.Consumer}[i%2]
		m := migrator(t, pool, side)
		go func() {
			res, err := m.Up(t.Context())
			results <- res
			errs <- err
		}()
	}
	made := 0
	for range runs {
		require.NoError(t, <-errs)
		made += len((<-results).Partitions)
	}
	require.Equal(t, 2*22, made, "each partition was made by one of the runs")
	require.Zero(t, scalar[int](t, pool, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND NOT granted"))
}

func TestAPoolOfOneConnectionSuffices(t *testing.T) {
	cfg := newDatabase(t).Config()
	cfg.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	defer pool.Close()
	_, err = migrator(t, pool, migrations.Outbox, relay("orders")).Up(t.Context())
	require.NoError(t, err)
}

func TestLockHeldTooLongNamesItsHolder(t *testing.T) {
	pool := newDatabase(t)
	holder, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer holder.Release()
	_, err = holder.Exec(t.Context(), "SELECT pg_advisory_lock($1)", int64(0x6f6e636577617264))
	require.NoError(t, err)

	m := migrator(t, pool, migrations.Outbox, func(c *migrations.Config) { c.LockTimeout = time.Millisecond })
	_, err = m.Up(t.Context())
	require.ErrorIs(t, err, migrations.ErrLocked)
	var pid string
	require.NoError(t, holder.QueryRow(t.Context(), "SELECT pg_backend_pid()::text").Scan(&pid))
	require.ErrorContains(t, err, "pid "+pid+" holds the lock")
}

func TestPartitionsMeetAtUTCMidnight(t *testing.T) {
	pool := newDatabase(t)
	now := time.Date(2026, 11, 21, 23, 59, 59, 999_000_000, time.FixedZone("west", -5*3600)) // the 22nd in UTC
	_, err := migrator(t, pool, migrations.Outbox, at(now)).Up(t.Context())
	require.NoError(t, err)

	leafOf := func(at time.Time) string {
		id := outbox.FirstID(at)
		require.NoError(t, pool.QueryRow(t.Context(), insertRow, id).Scan(new(int64)))
		return scalar[string](t, pool, "SELECT tableoid::regclass::text FROM onceward.outbox WHERE id = $1", id)
	}
	midnight := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	require.Equal(t, "onceward.outbox_20261121", leafOf(midnight.Add(-time.Millisecond)))
	require.Equal(t, "onceward.outbox_20261122", leafOf(midnight))
	first, end := midnight.AddDate(0, 0, -7), midnight.AddDate(0, 0, 15)
	require.Equal(t, "onceward.outbox_20261115", leafOf(first))
	require.Equal(t, "onceward.outbox_20261206", leafOf(end.Add(-time.Millisecond)))

	for _, outside := range []time.Time{first.Add(-time.Millisecond), end, end.AddDate(1, 0, 0)} {
		_, err := pool.Exec(t.Context(), insertRow, outbox.FirstID(outside))
		var pg *pgconn.PgError
		require.ErrorAs(t, err, &pg, outside)
		require.Equal(t, "23514", pg.Code)
	}
	require.Zero(t, scalar[int](t, pool, "SELECT count(*) FROM pg_class WHERE pg_get_expr(relpartbound, oid) = 'DEFAULT'"))
}

func TestALaterUpGoesOnAndNeverBack(t *testing.T) {
	pool := newDatabase(t)
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	_, err := migrator(t, pool, migrations.Consumer, at(now)).Up(t.Context())
	require.NoError(t, err)
	exec(t, pool, "DROP TABLE onceward.processed_events_20261114, onceward.processed_events_20261115")

	res, err := migrator(t, pool, migrations.Consumer, at(now)).Up(t.Context())
	require.NoError(t, err)
	require.Empty(t, res.Partitions, "a dropped range stays gone")
	res, err = migrator(t, pool, migrations.Consumer, at(now.AddDate(0, 0, 1))).Up(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"processed_events_20270125"}, res.Partitions)
}

// TestWhatRetentionDroppedStaysGone: also between a day that an open letter keeps
// and the horizon.
func TestWhatRetentionDroppedStaysGone(t *testing.T) {
	pool := newDatabase(t)
	m := migrator(t, pool, migrations.Consumer)
	res, err := m.Up(t.Context())
	require.NoError(t, err)
	for _, day := range res.Partitions[1:4] {
		_, err := pool.Exec(t.Context(), "DROP TABLE onceward."+day)
		require.NoError(t, err)
	}
	_, err = pool.Exec(t.Context(), "INSERT INTO onceward.dedup_horizon (dropped_before) VALUES ($1)",
		time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, 3-migrations.DaysBack))
	require.NoError(t, err)
	plan, err := m.UpSQL(t.Context())
	require.NoError(t, err)
	again, err := m.Up(t.Context())
	require.NoError(t, err)
	require.Equal(t, res.Partitions[3:4], again.Partitions, "what is above the horizon is made again")
	require.Contains(t, strings.Join(plan, "\n"), res.Partitions[3])
	require.NotContains(t, strings.Join(plan, "\n"), res.Partitions[2])
}

func TestPublicationDefinition(t *testing.T) {
	pool := newDatabase(t)
	m := migrator(t, pool, migrations.Outbox, relay("orders"))
	_, err := m.Up(t.Context())
	require.NoError(t, err)
	require.Equal(t, "t f f f t f", scalar[string](t, pool, `SELECT concat_ws(' ', pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot, puballtables)
FROM pg_publication WHERE pubname = 'onceward_orders'`))
	require.Equal(t, "controls,outbox,replays", scalar[string](t, pool, "SELECT string_agg(tablename, ',' ORDER BY tablename) FROM pg_publication_tables WHERE pubname = 'onceward_orders' AND schemaname = 'onceward'"))

	res, err := migrator(t, pool, migrations.Outbox, relay("billing")).Up(t.Context())
	require.NoError(t, err)
	require.Equal(t, "onceward_billing", res.Publication)

	exec(t, pool, "ALTER PUBLICATION onceward_orders SET (publish = 'insert, update')")
	_, err = m.Up(t.Context())
	require.ErrorIs(t, err, migrations.ErrPublication)
	st, err := migrator(t, pool, migrations.Outbox).Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, []migrations.PublicationStatus{
		{Name: "onceward_billing"},
		{Name: "onceward_orders", Faults: []string{"it publishes [insert, update]"}},
	}, st.Publications)

	res, err = m.Down(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"publication onceward_billing", "schema onceward"}, res.Dropped)
	require.Equal(t, []string{"publication onceward_orders: changed since it was made (it publishes [insert, update])"}, res.Kept)
}

func TestThePublicationCuresWork(t *testing.T) {
	pool := newDatabase(t)
	m := migrator(t, pool, migrations.Outbox, relay("orders"))
	exec(t, pool, "CREATE TABLE public.other (id int); CREATE PUBLICATION onceward_orders FOR TABLE public.other, TABLES IN SCHEMA public")
	_, err := m.Up(t.Context())
	require.ErrorIs(t, err, migrations.ErrPublication)
	exec(t, pool, `ALTER PUBLICATION "onceward_orders" SET TABLE onceward.outbox, onceward.replays, onceward.controls`)
	exec(t, pool, `ALTER PUBLICATION "onceward_orders" SET (publish = 'insert', publish_via_partition_root = true)`)
	_, err = m.Up(t.Context())
	require.NoError(t, err)

	res, err := m.Down(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"schema onceward"}, res.Dropped, "a publication that Up did not make stays")
}

func TestDownRefusesWhileASlotExists(t *testing.T) {
	pool := newDatabase(t)
	m := migrator(t, pool, migrations.Outbox, relay("orders"))
	_, err := m.Up(t.Context())
	require.NoError(t, err)
	exec(t, pool, "SELECT pg_create_logical_replication_slot('onceward_orders_e2e', 'pgoutput')")
	exec(t, pool, `INSERT INTO onceward.relay_state (slot, relay, database, system_identifier, timeline, confirmed_lsn, publication)
VALUES ('onceward_orders_e2e', 'orders', current_database(), '1', 1, '0/0', 'onceward_orders')`)
	_, err = m.Down(t.Context())
	require.ErrorIs(t, err, migrations.ErrSlotExists)
	require.ErrorContains(t, err, "SELECT pg_catalog.pg_drop_replication_slot('onceward_orders_e2e');")
	exec(t, pool, "SELECT pg_drop_replication_slot('onceward_orders_e2e')")
	_, err = m.Down(t.Context())
	require.NoError(t, err)
}

func TestDownDropsOnlyWhatUpMade(t *testing.T) {
	pool := newDatabase(t)
	exec(t, pool, "CREATE SCHEMA onceward")
	m := migrator(t, pool, migrations.Outbox)
	_, err := m.Up(t.Context())
	require.NoError(t, err)
	exec(t, pool, "CREATE VIEW public.events AS SELECT id FROM onceward.outbox")
	_, err = m.Down(t.Context())
	require.ErrorContains(t, err, "view public.events depends on table onceward.outbox")
	require.Zero(t, scalar[int](t, pool, "SELECT count(*) FROM onceward.outbox"), "the migration that was refused is undone whole")
	_, err = m.Up(t.Context())
	require.NoError(t, err, "and the later ones, which were removed, come back")
	require.NoError(t, migrations.Check(t.Context(), pool, migrations.Outbox))
	exec(t, pool, "DROP VIEW public.events")

	res, err := m.Down(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"schema onceward: it was there before migrate up"}, res.Kept)
	require.Equal(t, 1, scalar[int](t, pool, "SELECT count(*) FROM pg_namespace WHERE nspname = 'onceward'"))
}

func TestDryRunTouchesNothingAndItsSQLWorks(t *testing.T) {
	for _, side := range []migrations.Side{migrations.Outbox, migrations.Consumer} {
		pool := newDatabase(t)
		m := migrator(t, pool, side)
		if side == migrations.Outbox {
			m = migrator(t, pool, side, relay("orders"))
		}
		first, err := m.UpSQL(t.Context())
		require.NoError(t, err)
		require.Zero(t, scalar[int](t, pool, "SELECT count(*) FROM pg_namespace WHERE nspname = 'onceward'"))

		// The partitions' plan is only for the eyes before the table exists, so
		// it must be what a second database gets.
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		for _, sql := range first {
			_, err := tx.Exec(t.Context(), sql)
			require.NoError(t, err, sql)
		}
		require.NoError(t, tx.Rollback(t.Context()))

		_, err = m.Up(t.Context())
		require.NoError(t, err)
		again, err := m.UpSQL(t.Context())
		require.NoError(t, err)
		require.Empty(t, again)

		down, err := m.DownSQL(t.Context())
		require.NoError(t, err)
		for _, sql := range down {
			exec(t, pool, sql)
		}
	}
}

func TestStatusOfNothing(t *testing.T) {
	pool := newDatabase(t)
	st, err := migrator(t, pool, migrations.Outbox, relay("orders")).Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, migrations.Outbox, st.Side)
	require.Zero(t, st.Version)
	require.Equal(t, "00001_outbox.sql", st.Pending[0])
	require.Len(t, st.Pending, int(st.Latest))
	require.Len(t, st.Publications, 1)
	require.Contains(t, st.Publications[0].Faults[0], "outboxctl migrate up --side outbox --relay orders")
}

// Status is for everybody, also behind PgBouncer; Up holds a lock in its session
// and wants PostgreSQL itself.
func TestStatusThroughAPooler(t *testing.T) {
	direct := newDatabase(t)
	exec(t, direct, "ALTER DATABASE "+pgx.Identifier{direct.Config().ConnConfig.Database}.Sanitize()+" SET search_path = public, pg_catalog")
	want, err := migrator(t, direct, migrations.Outbox, relay("orders")).Up(t.Context())
	require.NoError(t, err)
	pool, err := pgxpool.New(t.Context(), testdb.Pooler(t, direct))
	require.NoError(t, err)
	defer pool.Close()
	m := migrator(t, pool, migrations.Outbox, relay("orders"))
	st, err := m.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, want.To, st.Version)
	require.Equal(t, len(want.Partitions), st.Partitions)
	require.Equal(t, []migrations.PublicationStatus{{Name: "onceward_orders"}}, st.Publications)
	require.Equal(t, "public, pg_catalog", scalar[string](t, pool, "SHOW search_path"), "whoever gets the session next has it as it was")
	_, err = m.Up(t.Context())
	require.ErrorContains(t, err, "unsupported startup parameter")
}

func TestALeftoverTableIsNamed(t *testing.T) {
	pool := newDatabase(t)
	exec(t, pool, "CREATE SCHEMA onceward; CREATE TABLE onceward.outbox (id uuid)")
	_, err := migrator(t, pool, migrations.Outbox).Up(t.Context())
	require.ErrorContains(t, err, `relation "outbox" already exists`)
	require.ErrorContains(t, err, "rename or drop it")
}

func TestEnqueueFillsTheIdentityThroughTheRoot(t *testing.T) {
	for _, version := range []string{"15", "18"} {
		t.Run(version, func(t *testing.T) { enqueueThroughTheRoot(t, testdb.New(t, version)) })
	}
}

func enqueueThroughTheRoot(t *testing.T, pool *pgxpool.Pool) {
	_, err := migrator(t, pool, migrations.Outbox).Up(t.Context())
	require.NoError(t, err)
	var last int64
	for range 3 {
		key, err := outbox.NewKey("orders")
		require.NoError(t, err)
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = outbox.Enqueue(t.Context(), tx, outbox.Event{Key: key, AggregateType: "order", AggregateID: "1", Type: "OrderPaid"})
		require.NoError(t, err)
		require.NoError(t, tx.Commit(t.Context()))
		seq := scalar[int64](t, pool, "SELECT seq FROM onceward.outbox WHERE id = $1", key.UUID())
		require.Greater(t, seq, last)
		last = seq
	}
	leaf := partition.OfDay("outbox", time.Now()).Name
	require.Equal(t, 2, scalar[int](t, pool, "SELECT count(*) FROM pg_indexes WHERE schemaname = 'onceward' AND tablename = $1", leaf), "primary key and tx_id")
	require.Equal(t, 8, scalar[int](t, pool, "SELECT count(*) FROM pg_constraint WHERE contype = 'c' AND convalidated AND conrelid = ('onceward.' || $1)::regclass", leaf), "the table's rules, without the bounds")
}
