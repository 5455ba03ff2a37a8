//go:build e2e

package outbox_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/outbox"
)

// lib/pq, and what is built on database/sql, are tested in examples/drivers,
// which has a go.mod of its own.

func enqueueSQL(t *testing.T, db *sql.DB, ev outbox.Event) (outbox.Result, error) {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback()
	r, err := outbox.EnqueueSQL(t.Context(), tx, ev)
	if err == nil {
		require.NoError(t, tx.Commit())
	}
	return r, err
}

func TestEnqueueSQLIsEnqueue(t *testing.T) {
	pool := installed(t)
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	full, bare := newEvent(t), newEvent(t)
	full.Payload, full.Traceparent = []byte{0, 0xff, '\''}, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	bare.Payload, bare.Headers = nil, nil
	for _, ev := range []outbox.Event{full, bare} {
		for _, want := range []outbox.Result{outbox.Enqueued, outbox.Duplicate} {
			r, err := enqueueSQL(t, db, ev)
			require.NoError(t, err)
			require.Equal(t, want, r)
		}
		r, err := enqueue(t, pool, ev)
		require.NoError(t, err)
		require.Equal(t, outbox.Duplicate, r, "both write one row")
		ev.Type = "Other"
		_, err = enqueueSQL(t, db, ev)
		require.ErrorIs(t, err, outbox.ErrKeyReused)
	}
	broken := newEvent(t)
	broken.AggregateID = ""
	_, err := enqueueSQL(t, db, broken)
	require.ErrorIs(t, err, outbox.ErrEvent)
	old := newEvent(t)
	old.Key, err = outbox.ExternalKey("shop", "evt_1", time.Now().AddDate(-1, 0, 0))
	require.NoError(t, err)
	_, err = enqueueSQL(t, db, old)
	require.ErrorIs(t, err, outbox.ErrOutOfWindow)
	require.Len(t, written(t, pool), 2)
}

func TestEnqueueSQLWithoutATransaction(t *testing.T) {
	pool := installed(t)
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	_, err := outbox.EnqueueSQL(t.Context(), db, newEvent(t))
	require.ErrorIs(t, err, outbox.ErrNoTransaction)
	require.ErrorContains(t, err, "*sql.DB was given")
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	_, err = outbox.EnqueueSQL(t.Context(), conn, newEvent(t))
	require.ErrorIs(t, err, outbox.ErrNoTransaction)
	require.NoError(t, conn.Close())
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, tx.Rollback())
	_, err = outbox.EnqueueSQL(t.Context(), tx, newEvent(t))
	require.ErrorIs(t, err, sql.ErrTxDone, "a transaction that has ended")
	require.Empty(t, written(t, pool))
}

func TestEnqueueSQLNamesTheCommand(t *testing.T) {
	db := stdlib.OpenDBFromPool(testdb.New(t, "15"))
	defer db.Close()
	_, err := enqueueSQL(t, db, newEvent(t))
	require.ErrorContains(t, err, "outboxctl migrate up --side outbox")
}

// rewriting is a transaction that replaces placeholders by itself, as bun.Tx.
type rewriting struct{ *sql.Tx }

func (r rewriting) ExecContext(ctx context.Context, query string, _ ...any) (sql.Result, error) {
	return r.Tx.ExecContext(ctx, query)
}

func TestAnotherPlaceholderStyleIsNamed(t *testing.T) {
	db := stdlib.OpenDBFromPool(installed(t))
	defer db.Close()
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback()
	_, err = outbox.EnqueueSQL(t.Context(), rewriting{tx}, newEvent(t))
	require.ErrorContains(t, err, "give EnqueueSQL the *sql.Tx inside of it")
}
