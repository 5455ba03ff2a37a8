//go:build e2e

package main

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/testdb"
)

// Every way of a command to the database is pinned, counts when it says so, and
// leaves the session to the next one as it was.
func TestEveryStatementIsPinned(t *testing.T) {
	pool := testdb.New(t, "15")
	exec(t, pool, "ALTER DATABASE "+pgx.Identifier{pool.Config().ConnConfig.Database}.Sanitize()+" SET search_path = public, pg_catalog")
	exec(t, pool, `CREATE TABLE public.seen (how text PRIMARY KEY, path text DEFAULT current_setting('search_path'), rls text DEFAULT current_setting('row_security'),
		jit text DEFAULT current_setting('jit'))`)
	db, err := operator.Open(t.Context(), pool.Config().ConnString())
	require.NoError(t, err)
	defer db.Close()
	ctx := t.Context()
	const insert = "INSERT INTO public.seen VALUES ($1) RETURNING how"
	_, err = db.Exec(ctx, insert, "exec")
	require.NoError(t, err)
	var how string
	require.NoError(t, db.QueryRow(ctx, insert, "row").Scan(&how))
	rows, err := db.Query(ctx, insert, "rows")
	require.NoError(t, err)
	_, err = pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	batch := &pgx.Batch{}
	batch.Queue(insert, "batch")
	require.NoError(t, db.SendBatch(ctx, batch).Close())
	require.NoError(t, pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, insert, "tx")
		return err
	}))
	got, err := pool.Query(ctx, "SELECT how || ' ' || path || ' ' || rls || ' ' || jit FROM public.seen ORDER BY how")
	require.NoError(t, err)
	all, err := pgx.CollectRows(got, pgx.RowTo[string])
	require.NoError(t, err)
	const pin = " pg_catalog, pg_temp off off"
	require.Equal(t, []string{"batch" + pin, "exec" + pin, "row" + pin, "rows" + pin, "tx" + pin}, all)
	require.NoError(t, db.Direct(ctx, func(conn *pgx.Conn) error { return conn.QueryRow(ctx, "SHOW search_path").Scan(&how) }))
	require.Equal(t, "public, pg_catalog", how, "a pooler may give the session to somebody else")
}

// What fails at the commit is not taken for done.
func TestAFailedCommitIsAnError(t *testing.T) {
	pool := testdb.New(t, "15")
	exec(t, pool, "CREATE TABLE public.late (id int PRIMARY KEY, of int REFERENCES public.late DEFERRABLE INITIALLY DEFERRED)")
	db, err := operator.Open(t.Context(), pool.Config().ConnString())
	require.NoError(t, err)
	defer db.Close()
	var id int
	const broken = "INSERT INTO public.late VALUES (1, 2) RETURNING id"
	require.ErrorContains(t, db.QueryRow(t.Context(), broken).Scan(&id), "violates foreign key")
	rows, err := db.Query(t.Context(), broken)
	require.NoError(t, err)
	_, err = pgx.CollectRows(rows, pgx.RowTo[int])
	require.ErrorContains(t, err, "violates foreign key")
	batch := &pgx.Batch{}
	batch.Queue(broken)
	require.ErrorContains(t, db.SendBatch(t.Context(), batch).Close(), "violates foreign key")
	_, err = db.Exec(t.Context(), broken)
	require.ErrorContains(t, err, "violates foreign key")
	require.ErrorIs(t, db.QueryRow(t.Context(), "SELECT 1 WHERE false").Scan(&id), pgx.ErrNoRows)
	db.Close()
	require.Error(t, db.QueryRow(t.Context(), "SELECT 1").Scan(&id))
	require.Error(t, db.SendBatch(t.Context(), batch).Close())
}

// Rows that somebody may not see are an error and not a short answer.
func TestFilteredRowsAreAnError(t *testing.T) {
	onInstallations(t, func(d *installation) {
		exec(d.t, d.pool, "ALTER TABLE onceward.outbox ENABLE ROW LEVEL SECURITY")
		for _, args := range [][]string{{"list", "--state", "pending"}, {"list", "--state", "published"}, {"show", someKey}} {
			code, _, stderr := call(d.t, args...)
			require.Equal(d.t, exitFailed, code, args)
			require.Contains(d.t, stderr, "ROW_SECURITY: row-level security of onceward.outbox would hide rows", args)
			require.Contains(d.t, stderr, "BYPASSRLS", args)
		}
	})
}

// Who interrupts a command knows what it did: a commit that was begun goes on to its
// end, and one that was not begun is not begun any more.
func TestAnInterruptedCommit(t *testing.T) {
	pool := testdb.New(t, "18")
	exec(t, pool, "CREATE TABLE public.slow (id int)")
	exec(t, pool, `CREATE FUNCTION public.hold() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END'`)
	exec(t, pool, "CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON public.slow DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.hold()")
	db, err := operator.Open(t.Context(), pool.Config().ConnString())
	require.NoError(t, err)
	defer db.Close()
	holder, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer holder.Release()
	_, err = holder.Exec(t.Context(), "SELECT pg_advisory_lock(7)")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	interrupted := make(chan struct{})
	go func() {
		defer close(interrupted)
		for held := false; !held && t.Context().Err() == nil; {
			_ = holder.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)").Scan(&held)
		}
		cancel()
		_, _ = holder.Exec(t.Context(), "SELECT pg_advisory_unlock(7)")
	}()
	_, err = db.Exec(ctx, "INSERT INTO public.slow VALUES (1)")
	<-interrupted
	require.NoError(t, err)
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	require.ErrorIs(t, pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO public.slow VALUES (2)")
		cancel()
		return err
	}), context.Canceled)
	var rows []int32
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT array_agg(id) FROM public.slow").Scan(&rows))
	require.Equal(t, []int32{1}, rows)
}
