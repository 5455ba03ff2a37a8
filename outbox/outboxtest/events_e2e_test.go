//go:build e2e

package outboxtest_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/outbox/outboxtest"
)

func TestMain(m *testing.M) { os.Exit(testdb.Main(m)) }

func installed(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := testdb.New(t, "15")
	m, err := migrations.New(migrations.Config{Pool: pool, Side: migrations.Outbox})
	require.NoError(t, err)
	_, err = m.Up(t.Context())
	require.NoError(t, err)
	return pool
}

func TestEventsAreThoseOfTheTransaction(t *testing.T) {
	pool := installed(t)
	before, ev, tombstone := newEvent(t), newEvent(t), newEvent(t)
	tombstone.Payload, tombstone.Headers, tombstone.Traceparent = nil, nil, ""
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := outbox.Enqueue(t.Context(), tx, before)
		return err
	}))
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background())
	require.Empty(t, outboxtest.Events(t, tx))
	_, err = outbox.Enqueue(t.Context(), tx, ev)
	require.NoError(t, err)
	boom := errors.New("boom")
	require.ErrorIs(t, pgx.BeginFunc(t.Context(), tx, func(savepoint pgx.Tx) error {
		_, err := outbox.Enqueue(t.Context(), savepoint, newEvent(t))
		require.NoError(t, err)
		return boom
	}), boom)
	require.NoError(t, pgx.BeginFunc(t.Context(), tx, func(savepoint pgx.Tx) error {
		_, err := outbox.Enqueue(t.Context(), savepoint, tombstone)
		return err
	}))
	require.Equal(t, []outbox.Event{ev, tombstone}, outboxtest.Events(t, tx))
	require.Equal(t, []outbox.Event{before, ev, tombstone}, outboxtest.AllEvents(t, tx))
	require.Equal(t, []outbox.Event{before}, outboxtest.AllEvents(t, pool))
	require.Empty(t, outboxtest.Events(t, pool))
}

func TestEventsThroughDatabaseSQL(t *testing.T) {
	pool := installed(t)
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback()
	ev, tombstone := newEvent(t), newEvent(t)
	tombstone.Payload, tombstone.Headers = nil, nil
	for _, e := range []outbox.Event{ev, tombstone} {
		_, err = outbox.EnqueueSQL(t.Context(), tx, e)
		require.NoError(t, err)
	}
	require.Equal(t, []outbox.Event{ev, tombstone}, outboxtest.EventsSQL(t, tx))
	require.Empty(t, outboxtest.AllEventsSQL(t, db))
	require.NoError(t, tx.Commit())
	require.Equal(t, []outbox.Event{ev, tombstone}, outboxtest.AllEventsSQL(t, db))
}

func TestWithoutTheTableTheTestEnds(t *testing.T) {
	pool := testdb.New(t, "15")
	f := &fake{T: t}
	require.Nil(t, outboxtest.AllEvents(f, pool))
	require.Contains(t, f.message, "read the outbox")
	require.Contains(t, f.message, "does not exist")
}
