//go:build e2e

package consumer_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/partition"
)

// lib/pq is tested in examples/drivers, which has a go.mod of its own.

// TestClaimSQLIsClaim: both meet one another, and have the same outcomes.
func TestClaimSQLIsClaim(t *testing.T) {
	t.Parallel()
	b := newBelow(t, nil, consumer.Class{Late: consumer.LateProcess}, 30)
	db := stdlib.OpenDBFromPool(b.db)
	defer db.Close()
	p := must(consumer.New(t.Context(), consumer.Config{
		Group: "billing", DB: b.db, LockTimeout: 50 * time.Millisecond, Classes: []consumer.Class{{Pattern: "*", Window: time.Hour}},
	}))
	claim := func(ev consumer.Event) (c consumer.Claim) {
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer tx.Rollback()
		c, err = p.ClaimSQL(t.Context(), tx, ev)
		require.NoError(t, err)
		if c.Outcome == consumer.Processed {
			require.NoError(t, p.CompleteSQL(t.Context(), tx, ev, []byte(`{"n": 1}`)))
			require.NoError(t, tx.Commit())
		}
		return c
	}
	for _, offset := range []int64{1, 100} { // above the floor, and late
		ev := newEvent(t)
		if offset == 100 {
			ev = b.event(offset)
		}
		first := claim(ev)
		require.Equal(t, consumer.Processed, first.Outcome)
		require.Equal(t, offset == 100, first.Late)
		again := claim(ev)
		require.Equal(t, consumer.Duplicate, again.Outcome)
		require.JSONEq(t, `{"n": 1}`, string(again.Result))
		require.WithinDuration(t, time.Now(), again.AppliedAt, time.Minute)
		require.NoError(t, b.deliver(ev, consumer.Duplicate), "of pgx")
		ev.Payload = nil
		require.Equal(t, consumer.Mismatch, claim(ev).Outcome)
	}
	require.Equal(t, consumer.Replay, claim(b.event(10)).Outcome)
	ahead := newEvent(t)
	ahead.Key = keyAt(t, time.Now().Add(time.Hour))
	require.Equal(t, consumer.FromFuture, claim(ahead).Outcome)

	ev := newEvent(t)
	require.NoError(t, pgx.BeginFunc(t.Context(), b.db, func(tx pgx.Tx) error {
		_, err := p.Claim(t.Context(), tx, ev)
		require.Equal(t, consumer.InProgress, claim(ev).Outcome, "held by the other")
		return err
	}))
	require.Equal(t, consumer.Duplicate, claim(ev).Outcome)
}

func TestClaimSQLFails(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	db := stdlib.OpenDBFromPool(e.db)
	defer db.Close()
	p := must(consumer.New(t.Context(), consumer.Config{Group: "billing", DB: e.db}))
	in := func(work func(tx *sql.Tx) error) error {
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer tx.Rollback()
		return work(tx)
	}
	require.ErrorIs(t, in(func(tx *sql.Tx) error {
		_, err := p.ClaimSQL(t.Context(), tx, consumer.Event{})
		return err
	}), consumer.ErrEvent)
	require.ErrorContains(t, in(func(tx *sql.Tx) error { return p.CompleteSQL(t.Context(), tx, newEvent(t), []byte("1")) }), "call Claim first")
	at := time.Now().AddDate(0, 0, -3)
	exec(t, e.db, "DROP TABLE onceward."+partition.OfDay("processed_events", at).Name)
	require.ErrorIs(t, in(func(tx *sql.Tx) error {
		ev := newEvent(t)
		ev.Key = keyAt(t, at)
		_, err := p.ClaimSQL(t.Context(), tx, ev)
		return err
	}), consumer.ErrNoPartition)
}
