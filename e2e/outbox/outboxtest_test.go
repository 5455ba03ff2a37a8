//go:build e2e

package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/outbox/outboxtest"
)

// fullEvent has every field that an event may have.
func fullEvent(t *testing.T) outbox.Event {
	t.Helper()
	ev := newEvent(t)
	ev.ContentType, ev.Traceparent = "text/plain", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	return ev
}

// failing is a TB that keeps what it is told.
type failing struct {
	*testing.T
	message string
}

func (f *failing) Fatalf(format string, args ...any) { f.message = fmt.Sprintf(format, args...) }

func TestEventsAreThoseOfTheTransaction(t *testing.T) {
	pool := installed(t)
	before, ev, tombstone := fullEvent(t), fullEvent(t), fullEvent(t)
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
		_, err := outbox.Enqueue(t.Context(), savepoint, fullEvent(t))
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
	ev, tombstone := fullEvent(t), fullEvent(t)
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
	f := &failing{T: t}
	require.Nil(t, outboxtest.AllEvents(f, pool))
	require.Contains(t, f.message, "read the outbox")
	require.Contains(t, f.message, "does not exist")
}
