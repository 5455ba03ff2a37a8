//go:build e2e

package outbox_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/outbox"
)

// answers collects what done was called with, in order.
type answers struct {
	results []outbox.Result
	errs    []error
}

func (a *answers) done(r outbox.Result, err error) {
	a.results, a.errs = append(a.results, r), append(a.errs, err)
}

func withInvoices(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := installed(t)
	_, err := pool.Exec(t.Context(), `CREATE TABLE invoices (id text PRIMARY KEY)`)
	require.NoError(t, err)
	return pool
}

func invoices(t *testing.T, pool *pgxpool.Pool) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM invoices`).Scan(&n))
	return n
}

func TestQueueEnqueueTellsEachResult(t *testing.T) {
	pool := withInvoices(t)
	events := newEvents(t, 3)
	_, err := enqueue(t, pool, events[1])
	require.NoError(t, err)
	var batch pgx.Batch
	var a answers
	for _, ev := range append(events, events[0]) {
		require.NoError(t, outbox.QueueEnqueue(&batch, ev, a.done))
		batch.Queue(`INSERT INTO invoices VALUES ($1)`, ev.AggregateID+"/"+time.Now().String())
	}
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return tx.SendBatch(t.Context(), &batch).Close() }))
	const e, d = outbox.Enqueued, outbox.Duplicate
	require.Equal(t, []outbox.Result{e, d, e, d}, a.results)
	require.Equal(t, []error{nil, nil, nil, nil}, a.errs)
	require.Equal(t, []string{"o-1", "o-0", "o-2"}, written(t, pool))
	require.Equal(t, 4, invoices(t, pool))
}

// Whatever goes wrong with an event, nothing of the batch remains, also when it
// is sent to a pool and so commits by itself.
func TestQueueEnqueueFailsAsAWhole(t *testing.T) {
	pool := withInvoices(t)
	taken := newEvent(t)
	_, err := enqueue(t, pool, taken)
	require.NoError(t, err)
	taken.Payload = []byte("other")
	old := newEvent(t)
	old.Key, err = outbox.ExternalKey("shop", "evt_1", time.Now().AddDate(-1, 0, 0))
	require.NoError(t, err)
	for _, tc := range []struct {
		ev   outbox.Event
		want error
	}{{taken, outbox.ErrKeyReused}, {old, outbox.ErrOutOfWindow}} {
		var batch pgx.Batch
		var a, later answers
		batch.Queue(`INSERT INTO invoices VALUES ('before')`)
		require.NoError(t, outbox.QueueEnqueue(&batch, tc.ev, a.done))
		require.NoError(t, outbox.QueueEnqueue(&batch, newEvent(t), later.done))
		batch.Queue(`INSERT INTO invoices VALUES ('behind')`)
		err := pool.SendBatch(t.Context(), &batch).Close()
		require.ErrorIs(t, err, tc.want)
		require.ErrorContains(t, err, tc.ev.Key.String())
		require.Equal(t, []outbox.Result{0}, a.results)
		require.ErrorIs(t, a.errs[0], tc.want)
		require.Empty(t, later.results, "not told of what never ran")
	}
	require.Zero(t, invoices(t, pool))
	require.Len(t, written(t, pool), 1)
}

func TestABatchOnAPoolIsOneTransaction(t *testing.T) {
	pool := withInvoices(t)
	var batch pgx.Batch
	var a answers
	require.NoError(t, outbox.QueueEnqueue(&batch, newEvent(t), a.done))
	batch.Queue(`INSERT INTO no_such_table VALUES (1)`)
	require.Error(t, pool.SendBatch(t.Context(), &batch).Close())
	require.Empty(t, written(t, pool))
}

func TestQueueEnqueueRefusesBeforeItQueues(t *testing.T) {
	var batch pgx.Batch
	ev := newEvent(t)
	ev.Type = ""
	err := outbox.QueueEnqueue(&batch, ev, nil)
	require.ErrorIs(t, err, outbox.ErrEvent)
	require.Zero(t, batch.Len())
	require.NoError(t, outbox.QueueEnqueue(&batch, newEvent(t), nil), "done may be nil")
	require.Equal(t, 1, batch.Len())
}
