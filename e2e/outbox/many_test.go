//go:build e2e

package outbox_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/outbox"
)

func newEvents(t *testing.T, n int) []outbox.Event {
	t.Helper()
	events := make([]outbox.Event, n)
	for i := range events {
		events[i] = newEvent(t)
		events[i].AggregateID = fmt.Sprintf("o-%d", i)
	}
	return events
}

func enqueueMany(t *testing.T, pool *pgxpool.Pool, events []outbox.Event) (rs []outbox.Result, err error) {
	t.Helper()
	err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		rs, err = outbox.EnqueueMany(t.Context(), tx, events)
		return err
	})
	return rs, err
}

// written returns the aggregate ids in the order of seq.
func written(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT aggregate_id FROM onceward.outbox ORDER BY seq`)
	require.NoError(t, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return ids
}

// More events than one round trip takes, so that the order holds across two;
// every kind of column, so that single and many write the same row.
func TestEnqueueManyWritesInTheOrderOfTheSlice(t *testing.T) {
	pool := installed(t)
	events := newEvents(t, 2500)
	want := make([]string, len(events))
	for i := range events {
		want[i] = events[i].AggregateID
	}
	events[1].Payload, events[1].Headers = nil, nil
	events[2].Payload, events[2].ContentType = []byte{}, "text/plain"
	events[3].Payload = []byte{0, 1, 0xff}
	events[3].Headers = map[string]string{"quote": `a "b" {c} \d, NULL`, "tenant": "übung"}
	events[4].Traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	events[5].AggregateType = `type,with "quotes" and {braces} NULL`

	rs, err := enqueueMany(t, pool, events)
	require.NoError(t, err)
	require.Len(t, rs, len(events))
	for i, r := range rs {
		require.Equal(t, outbox.Enqueued, r, i)
	}
	require.Equal(t, want, written(t, pool))
	for i := range 10 {
		r, err := enqueue(t, pool, events[i])
		require.NoError(t, err, i)
		require.Equal(t, outbox.Duplicate, r, "Enqueue finds what EnqueueMany wrote the same: %d", i)
	}
	var trace *string
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT traceparent FROM onceward.outbox WHERE id = $1`, events[4].Key.UUID()).Scan(&trace))
	require.Equal(t, events[4].Traceparent, *trace)
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT traceparent FROM onceward.outbox WHERE id = $1`, events[5].Key.UUID()).Scan(&trace))
	require.Nil(t, trace)

	rs, err = enqueueMany(t, pool, events)
	require.NoError(t, err)
	for i, r := range rs {
		require.Equal(t, outbox.Duplicate, r, i)
	}
}

func TestEnqueueManyJudgesEachEvent(t *testing.T) {
	pool := installed(t)
	events := newEvents(t, 5)
	_, err := enqueue(t, pool, events[1])
	require.NoError(t, err)
	again := events[3]
	again.Traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
	rs, err := enqueueMany(t, pool, append(events, again, events[1]))
	require.NoError(t, err)
	const e, d = outbox.Enqueued, outbox.Duplicate
	require.Equal(t, []outbox.Result{e, d, e, e, e, d, d}, rs)
	require.Len(t, written(t, pool), 5)
}

func TestEnqueueManyNamesEveryReusedKey(t *testing.T) {
	pool := installed(t)
	events := newEvents(t, 4)
	_, err := enqueue(t, pool, events[0])
	require.NoError(t, err)
	reused := events[0]
	reused.Payload = nil
	inside := events[2]
	inside.Headers = map[string]string{"a": "1"}
	list := []outbox.Event{reused, events[1], events[2], inside, reused, events[3]}

	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		rs, err := outbox.EnqueueMany(t.Context(), tx, list)
		require.ErrorIs(t, err, outbox.ErrKeyReused)
		for _, want := range []string{"event 0 of 6", "event 3 of 6", "event 4 of 6", events[0].Key.String(), events[2].Key.String()} {
			require.ErrorContains(t, err, want)
		}
		const e = outbox.Enqueued
		require.Equal(t, []outbox.Result{0, e, e, 0, 0, e}, rs)
		return nil // the transaction is not aborted: whoever wants the rest may have it
	}))
	require.Len(t, written(t, pool), 4)
}

func TestEnqueueManyRefusesBeforeItSends(t *testing.T) {
	pool := installed(t)
	rs, err := outbox.EnqueueMany(t.Context(), pool, nil)
	require.ErrorIs(t, err, outbox.ErrNoTransaction)
	require.Nil(t, rs)
	events := newEvents(t, 3)
	events[2].Type = ""
	rs, err = enqueueMany(t, pool, events)
	require.ErrorIs(t, err, outbox.ErrEvent)
	require.ErrorContains(t, err, "event 2 of 3: invalid event: Type")
	require.Nil(t, rs)
	rs, err = enqueueMany(t, pool, nil)
	require.NoError(t, err)
	require.Empty(t, rs)
	require.Empty(t, written(t, pool))
}

func TestEnqueueManyNamesTheEventOutsideTheWindow(t *testing.T) {
	pool := installed(t)
	events := newEvents(t, 3)
	old, err := outbox.ExternalKey("shop", "evt_1", time.Now().AddDate(-1, 0, 0))
	require.NoError(t, err)
	events[1].Key = old
	_, err = enqueueMany(t, pool, events)
	require.ErrorIs(t, err, outbox.ErrOutOfWindow)
	require.ErrorContains(t, err, old.String())
	require.Empty(t, written(t, pool))
}

func TestEnqueueManyBoundsARoundTrip(t *testing.T) {
	pool := installed(t)
	events := newEvents(t, 4)
	for i := range events {
		events[i].Payload = []byte(strings.Repeat("x", 5<<20))
	}
	rs, err := enqueueMany(t, pool, events)
	require.NoError(t, err)
	require.Len(t, rs, 4)
	require.Len(t, written(t, pool), 4)
}

// removing is a transaction under which the events go after its first statement,
// as they do when their partition is dropped.
type removing struct {
	pgx.Tx
	remove func()
}

func (r *removing) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	row := r.Tx.QueryRow(ctx, sql, args...)
	return afterwards{row, r.remove}
}

type afterwards struct {
	pgx.Row
	do func()
}

func (a afterwards) Scan(dest ...any) error {
	err := a.Row.Scan(dest...)
	a.do()
	return err
}

// Nothing can be said of an event that is gone: neither that it is the same nor
// that its key was used for another.
func TestEnqueueManySaysNothingOfAnEventThatIsGone(t *testing.T) {
	for name, payload := range map[string][]byte{"with a payload": []byte(`{}`), "a tombstone": nil} {
		t.Run(name, func(t *testing.T) {
			pool := installed(t)
			events := newEvents(t, 2)
			events[1].Payload = payload
			_, err := enqueue(t, pool, events[1])
			require.NoError(t, err)
			err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				_, err := outbox.EnqueueMany(t.Context(), &removing{tx, func() {
					_, err := pool.Exec(t.Context(), `DELETE FROM onceward.outbox WHERE id = $1`, events[1].Key.UUID())
					require.NoError(t, err)
				}}, events)
				return err
			})
			require.ErrorContains(t, err, events[1].Key.String()+": the event that had this key was removed in this moment")
			require.NotErrorIs(t, err, outbox.ErrKeyReused)
		})
	}
}
