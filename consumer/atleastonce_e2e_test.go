//go:build e2e

package consumer_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
)

// TestAtLeastOnce: every delivery of the event is handled and leaves nothing in the
// database. One that fails for good is one letter, as any other, whose redrive is
// handled and settled once; a delivery of it besides is handled too.
func TestAtLeastOnce(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	p, err := consumer.New(t.Context(), consumer.Config{Group: "stats", DB: e.db, Retry: consumer.Retry{MaxAttempts: 2, OnLetter: consumer.LetterPark}})
	require.NoError(t, err)
	calls, fails := 0, error(nil)
	r := consumer.NewRouter(p)
	r.AtLeastOnce("Paid", func(context.Context, consumer.Event) error { calls++; return fails })
	handled := func(rec consumer.Record, want consumer.Outcome) {
		t.Helper()
		before := calls
		got, err := r.HandleRecord(t.Context(), rec)
		require.NoError(t, err)
		require.Equal(t, []any{want, before + 1}, []any{got, calls})
	}
	d := &letterGroup{env: e, router: r}
	rec := d.record(newEvent(t))
	for range 3 {
		handled(rec, consumer.Processed)
	}
	old := newEvent(t)
	old.Key = keyAt(t, time.Now().AddDate(-1, 0, 0))
	handled(d.record(old), consumer.Processed)
	ahead := newEvent(t)
	ahead.Key = keyAt(t, time.Now().AddDate(0, 0, 1))
	handled(d.record(ahead), consumer.Processed)
	outcome, err := r.HandleCautiously(t.Context(), rec)
	require.NoError(t, err)
	require.Equal(t, consumer.Processed, outcome)
	require.NoError(t, e.expect(0, 0))
	require.Equal(t, []int{0, 0}, []int{e.letters(), count(t, e.db, "SELECT count(*) FROM onceward.attempts WHERE attempts + starts > 0")})

	fails = errBroken
	rec = d.record(newEvent(t))
	_, err = r.HandleRecord(t.Context(), rec)
	require.ErrorIs(t, err, errBroken)
	handled(rec, consumer.DeadLettered)
	handled(rec, consumer.DeadLettered)
	require.Equal(t, []int{1, 1}, []int{e.letters(), count(t, e.db, "SELECT count(*) FROM onceward.processed_events WHERE outcome = 'd'")})
	fails = nil
	handled(rec, consumer.Processed)                   // beside its letter
	handled(d.record(newEvent(t)), consumer.Processed) // of the same record key, which is parked
	calls = 0
	d.request()
	d.redrive(1)
	d.redrive(0)
	require.Equal(t, 1, calls)
	require.Equal(t, 1, count(t, e.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE state = 'redriven'"))
	require.Equal(t, 1, count(t, e.db, "SELECT count(*) FROM onceward.processed_events WHERE outcome = 'p'"))
	handled(rec, consumer.Processed)

	r = consumer.NewRouter(p)
	r.AtLeastOnce("Paid", func(context.Context, consumer.Event) error { panic("broken") })
	_, err = r.HandleRecord(t.Context(), d.record(newEvent(t)))
	var panicked *consumer.PanicError
	require.ErrorAs(t, err, &panicked)
	r.AtLeastOnce("Seen", nil)
	require.ErrorIs(t, r.Err(), consumer.ErrRegistration)
}

// TestAtLeastOnceCountedAnew: the offset is set back behind what the marks prove finished. An
// event that fails for good then is a dead letter all the same: no claim says that it was applied.
func TestAtLeastOnceCountedAnew(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	p, err := consumer.New(t.Context(), consumer.Config{Group: "stats", DB: e.db, Retry: consumer.Retry{MaxAttempts: 2}})
	require.NoError(t, err)
	r := consumer.NewRouter(p)
	r.AtLeastOnce("Paid", func(context.Context, consumer.Event) error { return errBroken })
	topic := uuid.New()
	require.NoError(t, r.BeginProgress(t.Context(), must(r.Progress(t.Context())).History, []consumer.Mark{{Topic: "orders", TopicID: topic, High: 99}}))
	ev := newEvent(t)
	ev.Key = keyAt(t, time.Now().AddDate(-1, 0, 0))
	rec := (&letterGroup{env: e, router: r}).record(ev)
	rec.Source.TopicID = topic
	_, err = r.HandleRecord(t.Context(), rec)
	require.ErrorIs(t, err, errBroken)
	outcome, err := r.HandleRecord(t.Context(), rec)
	require.NoError(t, err)
	require.Equal(t, []any{consumer.DeadLettered, 1}, []any{outcome, e.letters()})

	ends := newEvent(t) // its process, each time
	ends.Key = keyAt(t, time.Now().AddDate(-1, 0, 0))
	exec(t, e.db, `INSERT INTO onceward.attempts (event_id, consumer_group, attempts, starts, last_error, expires_at) VALUES ($1, 'stats', 0, 2, '', now() + interval '1 day')`, ends.Key.UUID())
	rec = recordOf(ends, 8)
	rec.Source.TopicID = topic
	outcome, err = r.HandleCautiously(t.Context(), rec)
	require.NoError(t, err)
	require.Equal(t, []any{consumer.DeadLettered, 2}, []any{outcome, e.letters()})
}

// TestAtLeastOnceHasNoEffects: Fence and Do would claim what its letter claims. An event
// that an earlier version of the program has left open waits for one that ends it.
func TestAtLeastOnceHasNoEffects(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	p, err := consumer.New(t.Context(), consumer.Config{Group: "stats", DB: e.db})
	require.NoError(t, err)
	ev := newEvent(t)
	fence := func(ctx context.Context, ev consumer.Event) error {
		_, err := consumer.Fence(ctx, p, ev, consumer.Effect[int]{Name: "charge", Do: func(context.Context, consumer.Call) (int, error) { return 1, nil }})
		return err
	}
	for _, effect := range []consumer.FuncHandler{fence, func(ctx context.Context, ev consumer.Event) error {
		_, err := consumer.Do(ctx, p, ev, func(context.Context, pgx.Tx) (int, error) { return 1, nil })
		return err
	}} {
		r := consumer.NewRouter(p)
		r.AtLeastOnce("Paid", effect)
		_, err = r.Handle(t.Context(), ev)
		require.ErrorIs(t, err, consumer.ErrInTx)
	}
	require.NoError(t, e.expect(0, 0))
	before := consumer.NewRouter(p)
	before.Func("Paid", func(ctx context.Context, ev consumer.Event) error { return errors.Join(fence(ctx, ev), errBroken) })
	_, err = before.Handle(t.Context(), ev)
	require.ErrorIs(t, err, errBroken)
	exec(t, e.db, "UPDATE onceward.fences SET completed_at = now() - interval '1 day', lease_until = now() - interval '1 day'")
	r := consumer.NewRouter(p)
	calls := 0
	r.AtLeastOnce("Paid", func(context.Context, consumer.Event) error { calls++; return nil })
	done, err := r.RecoverFences(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, []int{0, 0}, []int{done, calls})
	r = consumer.NewRouter(p)
	r.Func("Paid", fence)
	done, err = r.RecoverFences(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, 1, done)
}
