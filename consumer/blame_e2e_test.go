//go:build e2e

package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
)

// limited is a group whose handlers may run for so long, in sessions that may be
// idle for so long.
func limited(t *testing.T, e *env, handler time.Duration, h consumer.TxHandler) *consumer.Router {
	t.Helper()
	p, err := consumer.New(t.Context(), consumer.Config{Group: "billing", DB: e.db, HandlerTimeout: handler, LockTimeout: time.Minute, Retry: consumer.Retry{MaxAttempts: 2}})
	require.NoError(t, err)
	r := consumer.NewRouter(p)
	r.Tx("Paid", h)
	r.Batch("Moved", consumer.BatchOptions{}, h)
	return r
}

// TestBlame (B3, P1): whose failure it is depends on whose transaction broke.
func TestBlame(t *testing.T) {
	t.Parallel()
	raise := func(code string) consumer.TxHandler {
		return func(ctx context.Context, tx pgx.Tx, _ consumer.Event) error {
			_, err := tx.Exec(ctx, fmt.Sprintf(`DO $$ BEGIN RAISE EXCEPTION 'made up' USING ERRCODE = '%s'; END $$`, code))
			return err
		}
	}
	elsewhere := func(context.Context, pgx.Tx, consumer.Event) error { // a second database of the handler's
		return fmt.Errorf("the other database: %w", &pgconn.PgError{Code: "08006"})
	}
	cases := map[string]struct {
		handle consumer.TxHandler
		infra  bool
	}{
		"serialization":             {raise("40001"), true},
		"deadlock":                  {raise("40P01"), true},
		"out of memory":             {raise("53200"), true},
		"a lock that is not free":   {raise("55P03"), false},
		"a statement's timeout":     {raise("57014"), false},
		"a constraint":              {raise("23505"), false},
		"object not in its state":   {raise("55000"), false},
		"a missing table of theirs": {raise("42P01"), false},
		"elsewhere":                 {elsewhere, false},
		"the session was idle for too long": {func(ctx context.Context, tx pgx.Tx, _ consumer.Event) error {
			_, err := tx.Exec(ctx, "SET LOCAL idle_in_transaction_session_timeout = 50")
			if err == nil {
				err = waitFor(ctx, tx)
			}
			if err == nil {
				_, err = tx.Exec(ctx, "SELECT 1")
			}
			return err
		}, false},
		"the same, and nil": {func(ctx context.Context, tx pgx.Tx, _ consumer.Event) error {
			_, err := tx.Exec(ctx, "SET LOCAL idle_in_transaction_session_timeout = 50")
			return errors.Join(err, waitFor(ctx, tx))
		}, false},
		"the administrator": {func(ctx context.Context, tx pgx.Tx, _ consumer.Event) error {
			_, err := tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
			return err
		}, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, nil)
			r := limited(t, e, time.Minute, c.handle)
			ev := newEvent(t)
			ev.Source = consumer.Source{Topic: "orders", Offset: 1}
			_, err := r.Handle(t.Context(), ev)
			require.Error(t, err)
			require.Equal(t, c.infra, consumer.IsInfrastructure(err), "%v", err)
			want := 1
			if c.infra {
				want = 0
			}
			require.Equal(t, want, count(t, e.db, "SELECT count(*) FROM onceward.attempts"))
			if !c.infra {
				require.NoError(t, deliver(t.Context(), r, ev, consumer.DeadLettered))
			}
		})
	}
}

// waitFor waits until the server has ended the session of a transaction.
func waitFor(ctx context.Context, tx pgx.Tx) error {
	other, err := pgx.ConnectConfig(ctx, tx.Conn().Config().Copy())
	if err != nil {
		return err
	}
	defer other.Close(ctx)
	for pid := tx.Conn().PgConn().PID(); ; {
		var there bool
		if err := other.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", pid).Scan(&there); err != nil {
			return err
		}
		if !there {
			return nil
		}
	}
}

// TestHandlerTimeout (B3): a handler that hangs is a failure that counts, also one
// that ignores its context, which leaves its connection and not its partition
// behind.
func TestHandlerTimeout(t *testing.T) {
	t.Parallel()
	for _, ignores := range []bool{false, true} {
		for _, eventType := range []string{"Paid", "Moved", "Called"} {
			t.Run(fmt.Sprintf("%s, ignores %t", eventType, ignores), func(t *testing.T) {
				t.Parallel()
				e := newEnv(t, nil)
				release := make(chan struct{})
				hang := func(ctx context.Context) error {
					if ignores {
						<-release
						return nil
					}
					<-ctx.Done()
					return ctx.Err()
				}
				p, err := consumer.New(t.Context(), consumer.Config{Group: "billing", DB: e.db, HandlerTimeout: 50 * time.Millisecond, Retry: consumer.Retry{MaxAttempts: 2}})
				require.NoError(t, err)
				r := consumer.NewRouter(p)
				r.Func("Called", func(ctx context.Context, ev consumer.Event) error {
					_, err := consumer.Fence(ctx, p, ev, consumer.Effect[int]{Name: "call", Do: func(ctx context.Context, _ consumer.Call) (int, error) { return 0, hang(ctx) }})
					return err
				})
				handle := func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
					if ev.AggregateID == "good" {
						return effect("billing")(ctx, tx, ev)
					}
					return hang(ctx)
				}
				r.Tx("Paid", handle)
				r.Batch("Moved", consumer.BatchOptions{}, handle)
				bad, good := newEvent(t), newEvent(t)
				bad.Type, good.Type, good.AggregateID = eventType, eventType, "good"
				bad.Source, good.Source = consumer.Source{Topic: "orders", Offset: 1}, consumer.Source{Topic: "orders", Offset: 2}
				for attempt := 1; attempt <= 2; attempt++ {
					var d consumer.Delivery
					if eventType == "Moved" {
						all := r.HandleBatch(t.Context(), []consumer.Event{bad, good})
						d = all[0]
						require.NoError(t, all[1].Err)
					} else {
						d.Outcome, d.Err = r.Handle(t.Context(), bad)
					}
					if attempt == 1 {
						require.ErrorIs(t, d.Err, consumer.ErrHandlerTimeout)
						require.False(t, consumer.IsInfrastructure(d.Err))
						exec(t, e.db, "UPDATE onceward.fences SET lease_until = now() - interval '1 second'")
						continue
					}
					require.NoError(t, d.Err)
					require.Equal(t, consumer.DeadLettered, d.Outcome)
				}
				if ignores {
					require.Positive(t, p.StuckHandlers())
				}
				close(release)
				require.Eventually(t, func() bool { return p.StuckHandlers() == 0 }, time.Minute, time.Millisecond)
				require.EqualValues(t, 0, e.db.Stat().AcquiredConns(), "every connection was given back")
			})
		}
	}
}

// TestHandlersLocksAreTheirOwn: what a handler waits for is not bounded by how long
// a claim waits.
func TestHandlersLocksAreTheirOwn(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	cfg := e.db.Config().Copy()
	cfg.ConnConfig.RuntimeParams["lock_timeout"] = "7777"
	cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	e.db = pool
	var seen []string
	look := func(ctx context.Context, tx pgx.Tx) error {
		var lock, isolation string
		err := tx.QueryRow(ctx, "SELECT current_setting('lock_timeout'), current_setting('transaction_isolation')").Scan(&lock, &isolation)
		seen = append(seen, lock+" "+isolation)
		return err
	}
	p, err := consumer.New(t.Context(), consumer.Config{Group: "billing", DB: pool})
	require.NoError(t, err)
	r := consumer.NewRouter(p)
	r.Tx("Paid", func(ctx context.Context, tx pgx.Tx, _ consumer.Event) error { return look(ctx, tx) })
	r.Func("Called", func(ctx context.Context, ev consumer.Event) error {
		_, err := consumer.Do(ctx, p, ev, func(ctx context.Context, tx pgx.Tx) (int, error) { return 0, look(ctx, tx) })
		_, again := consumer.Fence(ctx, p, ev, consumer.Effect[int]{
			Name: "call", Do: func(context.Context, consumer.Call) (int, error) { return 0, nil },
			Commit: func(ctx context.Context, tx pgx.Tx, _ int) error { return look(ctx, tx) },
		})
		return errors.Join(err, again)
	})
	called := newEvent(t)
	called.Type = "Called"
	require.NoError(t, deliver(t.Context(), r, newEvent(t), consumer.Processed))
	require.NoError(t, deliver(t.Context(), r, called, consumer.Processed))
	_, err = consumer.Do(t.Context(), p, newEvent(t), func(ctx context.Context, tx pgx.Tx) (int, error) { return 0, look(ctx, tx) })
	require.NoError(t, err)
	require.Equal(t, []string{"7777ms read committed", "7777ms read committed", "7777ms read committed", "7777ms read committed"}, seen)
}

// TestClaimsGiveTheLockTimeoutBack: what a transaction of one's own waits for between
// and after its claims is its own matter, whatever they found.
func TestClaimsGiveTheLockTimeoutBack(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	p, err := consumer.New(t.Context(), consumer.Config{Group: "billing", DB: e.db, LockTimeout: 5 * time.Second})
	require.NoError(t, err)
	known := newEvent(t)
	require.NoError(t, pgx.BeginFunc(t.Context(), e.db, func(tx pgx.Tx) error { return claimAndComplete(t.Context(), p, tx, known) }))
	old := newEvent(t)
	old.Key, old.RepairID = keyAt(t, time.Now().AddDate(0, 0, -30)), uuid.New() // it claims nothing
	require.NoError(t, pgx.BeginFunc(t.Context(), e.db, func(tx pgx.Tx) error {
		for i, ev := range []consumer.Event{known, newEvent(t), old, known, newEvent(t)} {
			own := fmt.Sprintf("%dms", 1111*(i+1))
			if _, err := tx.Exec(t.Context(), "SET LOCAL lock_timeout = '"+own+"'"); err != nil {
				return err
			}
			if _, err := p.Claim(t.Context(), tx, ev); err != nil {
				return err
			}
			var is string
			require.NoError(t, tx.QueryRow(t.Context(), "SHOW lock_timeout").Scan(&is))
			require.Equal(t, own, is, "after claim %d", i)
		}
		return nil
	}))
}

// TestIncompleteInstallation: a missing right stops the group by name, and counts
// for nothing.
func TestIncompleteInstallation(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	r := e.router("billing", effect("billing"))
	exec(t, e.db, "ALTER TABLE onceward.processed_events RENAME TO processed_events_old")
	_, err := r.Handle(t.Context(), newEvent(t))
	require.ErrorIs(t, err, consumer.ErrInstallation)
	require.True(t, consumer.Permanent(err))
	require.Zero(t, count(t, e.db, "SELECT count(*) FROM onceward.attempts"))
	exec(t, e.db, "ALTER TABLE onceward.processed_events_old RENAME TO processed_events")

	// Of a cautious delivery too, and a redrive leaves its letter as it is.
	r.Tx("Odd", func(context.Context, pgx.Tx, consumer.Event) error { return consumer.DeadLetter(errBroken) })
	odd := newEvent(t)
	odd.Type = "Odd"
	require.NoError(t, deliverRecord(t.Context(), r, recordOf(odd, 1), consumer.DeadLettered))
	exec(t, e.db, "UPDATE onceward.consumer_dead_letters SET state = 'requested'")
	exec(t, e.db, "ALTER TABLE onceward.attempts RENAME TO attempts_old")
	_, err = r.HandleCautiously(t.Context(), recordOf(newEvent(t), 2))
	require.ErrorIs(t, err, consumer.ErrInstallation)
	require.True(t, consumer.Permanent(err))
	_, err = r.Redrive(t.Context(), 10)
	require.ErrorIs(t, err, consumer.ErrInstallation)
	require.Equal(t, 1, count(t, e.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE state = 'requested'"))
}
