//go:build e2e

package outbox_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
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

func newEvent(t *testing.T) outbox.Event {
	t.Helper()
	key, err := outbox.NewKey("shop")
	require.NoError(t, err)
	return outbox.Event{Key: key, AggregateType: "order", AggregateID: "o-1", Type: "OrderPaid", Payload: []byte(`{"n":1}`), Headers: map[string]string{"b": "2", "a": "1"}}
}

func enqueue(t *testing.T, pool *pgxpool.Pool, ev outbox.Event) (r outbox.Result, err error) {
	t.Helper()
	err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		r, err = outbox.Enqueue(t.Context(), tx, ev)
		return err
	})
	return r, err
}

func TestEnqueueWritesTheRow(t *testing.T) {
	pool := installed(t)
	ev := newEvent(t)
	ev.Traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	r, err := enqueue(t, pool, ev)
	require.NoError(t, err)
	require.Equal(t, outbox.Enqueued, r)
	var namespace, aggregate, typ, contentType, headers, trace string
	var payload []byte
	var created time.Time
	err = pool.QueryRow(t.Context(), `SELECT namespace, aggregate_id, event_type, content_type, headers::text, traceparent, payload, created_at FROM onceward.outbox WHERE id = $1`, ev.Key.UUID()).
		Scan(&namespace, &aggregate, &typ, &contentType, &headers, &trace, &payload, &created)
	require.NoError(t, err)
	require.Equal(t, []string{"shop", "o-1", "OrderPaid", outbox.DefaultContentType, `{"a": "1", "b": "2"}`, ev.Traceparent},
		[]string{namespace, aggregate, typ, contentType, headers, trace})
	require.Equal(t, ev.Payload, payload)
	require.WithinDuration(t, time.Now(), created, time.Minute)
}

func TestEnqueueTellsTombstoneFromEmpty(t *testing.T) {
	pool := installed(t)
	tombstone, empty := newEvent(t), newEvent(t)
	tombstone.Payload, empty.Payload = nil, []byte{}
	for _, ev := range []outbox.Event{tombstone, empty} {
		_, err := enqueue(t, pool, ev)
		require.NoError(t, err)
		var isNull bool
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT payload IS NULL FROM onceward.outbox WHERE id = $1`, ev.Key.UUID()).Scan(&isNull))
		require.Equal(t, ev.Payload == nil, isNull)
		r, err := enqueue(t, pool, ev)
		require.NoError(t, err)
		require.Equal(t, outbox.Duplicate, r)
	}
	empty.Payload = nil
	_, err := enqueue(t, pool, empty)
	require.ErrorIs(t, err, outbox.ErrKeyReused)
}

func TestTheSecondTryIsADuplicateAndTheTransactionGoesOn(t *testing.T) {
	pool := installed(t)
	ev := newEvent(t)
	_, err := enqueue(t, pool, ev)
	require.NoError(t, err)
	ev.Traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00" // another request, the same event
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		r, err := outbox.Enqueue(t.Context(), tx, ev)
		require.NoError(t, err)
		require.Equal(t, outbox.Duplicate, r)
		r, err = outbox.Enqueue(t.Context(), tx, newEvent(t))
		require.Equal(t, outbox.Enqueued, r)
		return err
	}))
	var n int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM onceward.outbox`).Scan(&n))
	require.Equal(t, 2, n)
}

func TestAKeyWithOtherContentIsRefused(t *testing.T) {
	pool := installed(t)
	ev := newEvent(t)
	_, err := enqueue(t, pool, ev)
	require.NoError(t, err)
	for name, change := range map[string]func(*outbox.Event){
		"payload":   func(e *outbox.Event) { e.Payload = []byte("other") },
		"type":      func(e *outbox.Event) { e.Type = "Other" },
		"aggregate": func(e *outbox.Event) { e.AggregateID = "other" },
		"headers":   func(e *outbox.Event) { e.Headers = nil },
		"content":   func(e *outbox.Event) { e.ContentType = "text/plain" },
	} {
		other := ev
		change(&other)
		_, err := enqueue(t, pool, other)
		require.ErrorIs(t, err, outbox.ErrKeyReused, name)
		require.ErrorContains(t, err, ev.Key.String())
	}
}

func TestARollbackTakesTheEventWithIt(t *testing.T) {
	pool := installed(t)
	ev := newEvent(t)
	boom := errors.New("boom")
	require.ErrorIs(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := outbox.Enqueue(t.Context(), tx, ev)
		require.NoError(t, err)
		return boom
	}), boom)
	r, err := enqueue(t, pool, ev)
	require.NoError(t, err)
	require.Equal(t, outbox.Enqueued, r, "the key is free again")
}

func TestOutsideTheWindowIsRefused(t *testing.T) {
	pool := installed(t)
	ev := newEvent(t)
	old, err := outbox.ParseKey("shop:0157f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a") // 2016
	require.NoError(t, err)
	ev.Key = old
	_, err = enqueue(t, pool, ev)
	require.ErrorIs(t, err, outbox.ErrOutOfWindow)
	require.ErrorContains(t, err, "2016-")
}

func TestWithoutATransactionNothingIsWritten(t *testing.T) {
	pool := installed(t)
	ctx := context.Background()
	_, err := outbox.Enqueue(ctx, pool, newEvent(t))
	require.ErrorIs(t, err, outbox.ErrNoTransaction)
	conn, err := pool.Acquire(ctx)
	require.NoError(t, err)
	defer conn.Release()
	_, err = outbox.Enqueue(ctx, conn, newEvent(t))
	require.ErrorIs(t, err, outbox.ErrNoTransaction)
	_, err = outbox.Enqueue(ctx, conn.Conn(), newEvent(t))
	require.ErrorIs(t, err, outbox.ErrNoTransaction)
	for _, end := range []func(pgx.Tx) error{func(tx pgx.Tx) error { return tx.Commit(ctx) }, func(tx pgx.Tx) error { return tx.Rollback(ctx) }} {
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		require.NoError(t, end(tx))
		_, err = outbox.Enqueue(ctx, tx, newEvent(t))
		require.ErrorIs(t, err, outbox.ErrNoTransaction)
		require.ErrorContains(t, err, "has ended, committed or rolled back")
	}
	_, err = conn.Exec(ctx, "BEGIN")
	require.NoError(t, err)
	_, err = outbox.Enqueue(ctx, conn.Conn(), newEvent(t))
	require.NoError(t, err, "BEGIN was sent by hand")
	_, err = conn.Exec(ctx, "COMMIT")
	require.NoError(t, err)
	var n int
	require.NoError(t, pool.QueryRow(ctx, `SELECT count(*) FROM onceward.outbox`).Scan(&n))
	require.Equal(t, 1, n)
}

func TestMissingTableNamesTheCommand(t *testing.T) {
	pool := testdb.New(t, "15")
	_, err := enqueue(t, pool, newEvent(t))
	require.ErrorContains(t, err, "outboxctl migrate up --side outbox")
}
