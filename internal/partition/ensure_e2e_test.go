//go:build e2e

package partition_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/outbox"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

const events = `CREATE TABLE public.events (id uuid NOT NULL, body text DEFAULT 'none' CHECK (body <> ''),
  seq bigint GENERATED ALWAYS AS IDENTITY, PRIMARY KEY (id)) PARTITION BY RANGE (id); CREATE INDEX ON public.events (seq)`

func days(n int) partition.Span { return partition.Span{First: noon, Last: noon.AddDate(0, 0, n-1)} }

func ensure(ctx context.Context, pool *pgxpool.Pool, span partition.Span) ([]string, error) {
	return partition.Ensure(ctx, pool, "public.events", "id", span)
}

func newTable(t *testing.T, version string) *pgxpool.Pool {
	t.Helper()
	pool := testdb.New(t, version)
	_, err := pool.Exec(t.Context(), events)
	require.NoError(t, err)
	return pool
}

func TestEnsure(t *testing.T) {
	for _, version := range []string{"15", "18"} {
		t.Run(version, func(t *testing.T) {
			pool := newTable(t, version)
			made, err := ensure(t.Context(), pool, days(3))
			require.NoError(t, err)
			require.Equal(t, []string{"events_20261121", "events_20261122", "events_20261123"}, made)
			made, err = ensure(t.Context(), pool, days(4))
			require.NoError(t, err)
			require.Equal(t, []string{"events_20261124"}, made)

			var seq int64
			var body, leaf string
			require.NoError(t, pool.QueryRow(t.Context(),
				"INSERT INTO public.events (id) VALUES ($1) RETURNING seq, body, tableoid::regclass::text", outbox.FirstID(noon)).Scan(&seq, &body, &leaf))
			require.EqualValues(t, 1, seq)
			require.Equal(t, "none", body)
			require.Equal(t, "events_20261121", leaf)
			_, err = pool.Exec(t.Context(), "INSERT INTO public.events (id) VALUES ($1)", outbox.FirstID(noon))
			require.ErrorContains(t, err, "duplicate key", "the primary key came with attaching")

			existing, err := partition.List(t.Context(), pool, "public.events")
			require.NoError(t, err)
			require.Equal(t, partition.Days("events", noon, noon.AddDate(0, 0, 3)), existing)
			var checks int
			require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_constraint WHERE contype = 'c' AND conname LIKE '%_range'").Scan(&checks))
			require.Zero(t, checks, "the constraint lives only while attaching")
		})
	}
}

func TestEnsureRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		setup string
		want  error
	}{
		"a DEFAULT partition": {"CREATE TABLE public.rest PARTITION OF public.events DEFAULT", partition.ErrDefault},
		"an overlap":          {fmt.Sprintf("CREATE TABLE public.odd PARTITION OF public.events FOR VALUES FROM ('%s') TO ('%s')", outbox.FirstID(noon), outbox.FirstID(noon.AddDate(0, 0, 1))), partition.ErrOverlap},
		"an unbounded one":    {fmt.Sprintf("CREATE TABLE public.odd PARTITION OF public.events FOR VALUES FROM (MINVALUE) TO ('%s')", outbox.FirstID(noon)), partition.ErrOverlap},
	} {
		t.Run(name, func(t *testing.T) {
			pool := newTable(t, "15")
			_, err := pool.Exec(t.Context(), tc.setup)
			require.NoError(t, err)
			_, err = ensure(t.Context(), pool, days(3))
			require.ErrorIs(t, err, tc.want)
			var made int
			require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'public.events'::regclass AND c.relname LIKE 'events_2%'").Scan(&made))
			require.Zero(t, made, "all or nothing")
		})
	}
}

// A detached partition keeps its own day from being made and no other; what is
// printed frees the name, and no row is lost.
func TestADetachedPartitionIsNotTakenForFree(t *testing.T) {
	pool := newTable(t, "15")
	_, err := ensure(t.Context(), pool, days(2))
	require.NoError(t, err)
	exec := func(sql string) {
		t.Helper()
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	exec(fmt.Sprintf("INSERT INTO public.events (id) VALUES ('%s')", outbox.FirstID(noon.AddDate(0, 0, 1))))
	exec("CREATE TABLE public.events_20261122_detached (id uuid)")
	exec("ALTER TABLE public.events DETACH PARTITION public.events_20261122")
	exec("CREATE VIEW public.events_20261124 AS SELECT 1")
	missing, err := partition.Missing(t.Context(), pool, "public.events", days(5))
	require.ErrorIs(t, err, partition.ErrTaken)
	made, failed := ensure(t.Context(), pool, days(5))
	require.ErrorIs(t, failed, partition.ErrTaken)
	var taken *partition.TakenError
	require.ErrorAs(t, failed, &taken)
	require.Equal(t, []string{"events_20261122", "events_20261124"}, taken.Names)
	require.Equal(t, []string{"events_20261123", "events_20261125"}, made, "the other days")
	require.Equal(t, made, missing)
	plan, err := partition.Plan(t.Context(), pool, "public.events", "id", days(5))
	require.NoError(t, err)
	require.Equal(t, []string{"-- " + taken.Error()}, plan)
	made, err = ensure(t.Context(), pool, days(5))
	require.ErrorIs(t, err, partition.ErrTaken, "also where nothing can be made")
	require.Empty(t, made)

	cures := regexp.MustCompile(`ALTER TABLE [^;]*;`).FindAllString(failed.Error(), -1)
	require.Equal(t, []string{`ALTER TABLE "public"."events_20261122" RENAME TO "events_20261122_detached2";`, `ALTER TABLE "public"."events_20261124" RENAME TO "events_20261124_old";`}, cures)
	exec(strings.Join(cures, ""))
	made, err = ensure(t.Context(), pool, days(5))
	require.NoError(t, err)
	require.Equal(t, []string{"events_20261122", "events_20261124"}, made)
	var rows int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM public.events_20261122_detached2").Scan(&rows))
	require.Equal(t, 1, rows)
}

// Claims come back under their day: an empty partition there would take a replay for
// new.
func TestADetachedDayOfClaimsIsAttachedAgain(t *testing.T) {
	pool := testdb.New(t, "15")
	_, err := pool.Exec(t.Context(), "CREATE SCHEMA onceward; CREATE TABLE onceward.processed_events (event_id uuid PRIMARY KEY) PARTITION BY RANGE (event_id)")
	require.NoError(t, err)
	claims := func(n int) ([]string, error) {
		return partition.Ensure(t.Context(), pool, "onceward.processed_events", "event_id", days(n))
	}
	_, err = claims(2)
	require.NoError(t, err)
	owner := pgx.Identifier{"Owner of " + pool.Config().ConnConfig.Database}.Sanitize()
	_, err = pool.Exec(t.Context(), "ALTER TABLE onceward.processed_events DETACH PARTITION onceward.processed_events_20261122; CREATE ROLE "+owner+
		"; GRANT ALL ON SCHEMA onceward TO "+owner+"; ALTER TABLE onceward.processed_events OWNER TO "+owner)
	require.NoError(t, err)
	made, err := claims(3)
	require.Equal(t, []string{"processed_events_20261123"}, made)
	require.ErrorIs(t, err, partition.ErrTaken)
	require.Contains(t, err.Error(), "which keeps its rows, as a superuser: `ALTER TABLE ", "the detached one is another's than the table")
	_, failed := pool.Exec(t.Context(), "ALTER TABLE onceward.processed_events_20261122 OWNER TO "+owner)
	require.NoError(t, failed)
	_, err = claims(3)
	require.ErrorIs(t, err, partition.ErrTaken)
	printed := regexp.MustCompile("as a member of the role (\"[^\"]+\"): `(ALTER TABLE [^;]*;)`").FindStringSubmatch(err.Error())
	require.NotNil(t, printed, err.Error())
	_, failed = pool.Exec(t.Context(), "SET ROLE "+printed[1]+"; "+printed[2]+" RESET ROLE")
	require.NoError(t, failed, err.Error())
	made, err = claims(3)
	require.NoError(t, err)
	require.Empty(t, made)
}

// between runs something behind the first query of a look and in front of the second.
type between struct {
	partition.Conn
	queries int
	run     func()
}

func (b *between) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if b.queries++; b.queries == 2 {
		b.run()
	}
	return b.Conn.Query(ctx, sql, args...)
}

// What another session makes between the two looks of one that has no lock yet is there,
// and no name that is taken: the cure of that would take it out of the table's names.
func TestPartitionsMadeMeanwhileAreThere(t *testing.T) {
	pool := newTable(t, "15")
	for n, look := range []func(partition.Conn, partition.Span) ([]string, error){
		func(c partition.Conn, s partition.Span) ([]string, error) {
			return partition.Ensure(t.Context(), c, "public.events", "id", s)
		},
		func(c partition.Conn, s partition.Span) ([]string, error) {
			return partition.Missing(t.Context(), c, "public.events", s)
		},
	} {
		beside := &between{Conn: pool, run: func() {
			_, err := ensure(t.Context(), pool, days(2+n))
			require.NoError(t, err)
		}}
		made, err := look(beside, days(2+n))
		require.NoError(t, err)
		require.Empty(t, made)
		require.GreaterOrEqual(t, beside.queries, 2)
	}
}

func TestConcurrentEnsuresWaitForOneAnother(t *testing.T) {
	pool := newTable(t, "15")
	const runs = 4
	made, errs := make(chan []string, runs), make(chan error, runs)
	for range runs {
		go func() {
			names, err := ensure(t.Context(), pool, days(10))
			made <- names
			errs <- err
		}()
	}
	total := 0
	for range runs {
		require.NoError(t, <-errs)
		total += len(<-made)
	}
	require.Equal(t, 10, total)
}

// An open transaction that has written holds ROW EXCLUSIVE on the parent; with
// ACCESS EXCLUSIVE, as CREATE TABLE … PARTITION OF takes it, Ensure would wait
// for it, and every other writer for Ensure.
func TestEnsureDoesNotWaitForWriters(t *testing.T) {
	pool := newTable(t, "15")
	_, err := ensure(t.Context(), pool, days(1))
	require.NoError(t, err)
	writer, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, writer.Rollback(context.WithoutCancel(t.Context()))) }()
	_, err = writer.Exec(t.Context(), "INSERT INTO public.events (id) VALUES ($1)", outbox.FirstID(noon))
	require.NoError(t, err)

	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), "SET lock_timeout = '2s'")
	require.NoError(t, err)
	made, err := partition.Ensure(t.Context(), conn, "public.events", "id", days(3))
	require.NoError(t, err)
	require.Len(t, made, 2)
}

func TestEnsureWithoutRightsSaysWhoMay(t *testing.T) {
	pool := newTable(t, "15")
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "SET LOCAL ROLE pg_monitor"); err != nil {
			return err
		}
		_, err := partition.Ensure(t.Context(), tx, "public.events", "id", days(1))
		return err
	})
	require.ErrorContains(t, err, "made by the owner of the table")
}
