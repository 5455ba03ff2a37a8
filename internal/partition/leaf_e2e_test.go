//go:build e2e

package partition_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/outbox"
)

func TestEnsureMakesNoDayBelowTheOldest(t *testing.T) {
	pool := newTable(t, "15")
	made, err := ensure(t.Context(), pool, days(2))
	require.NoError(t, err)
	require.Len(t, made, 2)
	wide := partition.Span{First: noon.AddDate(0, 0, -2), Last: noon.AddDate(0, 0, 2)}
	made, err = ensure(t.Context(), pool, wide)
	require.NoError(t, err)
	require.Equal(t, []string{"events_20261123"}, made)
	wide.Reopen = true
	made, err = ensure(t.Context(), pool, wide)
	require.NoError(t, err)
	require.Equal(t, []string{"events_20261119", "events_20261120"}, made)
}

// What is dropped between the first look and the lock stays gone.
func TestEnsureDoesNotMakeAgainWhatIsDroppedMeanwhile(t *testing.T) {
	for _, version := range []string{"15", "18"} {
		t.Run(version, func(t *testing.T) {
			pool := newTable(t, version)
			_, err := ensure(t.Context(), pool, days(2))
			require.NoError(t, err)
			holder, err := pool.Begin(t.Context())
			require.NoError(t, err)
			_, err = holder.Exec(t.Context(), "LOCK TABLE ONLY public.events IN SHARE UPDATE EXCLUSIVE MODE")
			require.NoError(t, err)
			made := make(chan []string, 1)
			go func() {
				names, err := ensure(t.Context(), pool, days(3))
				if err != nil {
					t.Error(err)
				}
				made <- names
			}()
			require.Eventually(t, func() bool { return waiting(t, pool) }, 10*time.Second, 5*time.Millisecond)
			_, err = holder.Exec(t.Context(), "DROP TABLE public.events_20261121")
			require.NoError(t, err)
			require.NoError(t, holder.Commit(t.Context()))
			require.Equal(t, []string{"events_20261123"}, <-made)
		})
	}
}

func waiting(t *testing.T, pool *pgxpool.Pool) bool {
	t.Helper()
	var n int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&n))
	return n > 0
}

func TestLeavesAndTheirRemoval(t *testing.T) {
	for _, version := range []string{"15", "18"} {
		t.Run(version, func(t *testing.T) { leavesAndTheirRemoval(t, newTable(t, version)) })
	}
}

func leavesAndTheirRemoval(t *testing.T, pool *pgxpool.Pool) {
	_, err := ensure(t.Context(), pool, days(4))
	require.NoError(t, err)
	for _, sql := range []string{
		"CREATE TABLE public.events_99999999 (id uuid)", // nobody's day
		"CREATE TABLE public.events_2026112 (id uuid)",
		"CREATE SCHEMA other; CREATE TABLE other.events_20261130 (id uuid)",
		"CREATE SCHEMA onceward; CREATE TABLE onceward.ours (id uuid) PARTITION BY RANGE (id)", // a maintainer owns one
		"ALTER TABLE public.events DETACH PARTITION public.events_20261122",
		"INSERT INTO public.events (id) VALUES ('" + outbox.FirstID(noon).String() + "')",
	} {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	reader, err := pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = reader.Rollback(context.Background()) })
	_, err = reader.Exec(t.Context(), "SELECT FROM public.events")
	require.NoError(t, err)
	conn, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	_, leave, err := partition.Enter(t.Context(), conn, 42, 100*time.Millisecond)
	require.NoError(t, err)
	_, _, err = partition.Enter(t.Context(), reader.Conn(), 42, time.Second)
	require.ErrorIs(t, err, partition.ErrBusy)

	third := find(t, pool, "events_20261123")
	begun := time.Now()
	err = partition.Detach(t.Context(), conn, "public.events", third)
	require.True(t, partition.TimedOut(err), "%v", err)
	younger, err := pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = younger.Rollback(context.Background()) })
	_, err = younger.Exec(t.Context(), "SELECT FROM public.events")
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf(" (pid %d)", reader.Conn().PgConn().PID()), partition.Holders(t.Context(), conn, "public.events", "", time.Since(begun)))
	require.NoError(t, younger.Rollback(t.Context()))
	require.Equal(t, []string{"events_20261123 pending", "events_20261121", "events_20261122 detached", "events_20261124"}, names(t, pool))
	first := find(t, pool, "events_20261121")
	require.Positive(t, first.Heap)
	require.Greater(t, first.Bytes, first.Heap)
	require.Zero(t, find(t, pool, "events_20261124").Heap)
	require.NoError(t, reader.Rollback(t.Context()))
	require.NoError(t, partition.Detach(t.Context(), conn, "public.events", find(t, pool, "events_20261123")), "the same call goes on")

	kept, err := partition.Drop(t.Context(), conn, "public.events", find(t, pool, "events_20261123"), func(context.Context, pgx.Tx) ([]string, error) { return []string{"no"}, nil })
	require.NoError(t, err)
	require.Equal(t, []string{"no"}, kept)
	require.Contains(t, names(t, pool), "events_20261123 detached")
	kept, err = partition.Drop(t.Context(), conn, "public.events", find(t, pool, "events_20261123"), func(context.Context, pgx.Tx) ([]string, error) { return nil, nil })
	require.NoError(t, err)
	require.Empty(t, kept)
	require.Equal(t, []string{"events_20261121", "events_20261122 detached", "events_20261124"}, names(t, pool))
	leave()
	_, leave, err = partition.Enter(t.Context(), conn, 42, time.Second)
	require.NoError(t, err)
	leave()
	var timeout string
	require.NoError(t, conn.QueryRow(t.Context(), "SHOW lock_timeout").Scan(&timeout))
	require.Equal(t, "0", timeout)

	_, err = pool.Exec(t.Context(), "CREATE TABLE public.rest PARTITION OF public.events DEFAULT")
	require.NoError(t, err)
	_, err = partition.Leaves(t.Context(), pool, "public.events")
	require.ErrorIs(t, err, partition.ErrDefault)
}

func leaves(t *testing.T, pool *pgxpool.Pool) []partition.Leaf {
	t.Helper()
	found, err := partition.Leaves(t.Context(), pool, "public.events")
	require.NoError(t, err)
	return found
}

func find(t *testing.T, pool *pgxpool.Pool, name string) partition.Leaf {
	t.Helper()
	for _, l := range leaves(t, pool) {
		if l.Name == name {
			return l
		}
	}
	t.Fatalf("no leaf %s", name)
	return partition.Leaf{}
}

func names(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	var out []string
	for _, l := range leaves(t, pool) {
		name := l.Name
		if l.Pending {
			name += " pending"
		} else if !l.Attached {
			name += " detached"
		}
		out = append(out, name)
	}
	return out
}
