//go:build e2e

package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/internal/claimstest"
	"github.com/onceward/onceward/internal/consumerdb"
)

// till is a shop whose handler of "Paid" charges, books and mails, and fails
// where it is told to.
type till struct {
	*shop
	router *consumer.Router
	mail   *provider
	booked int
	fails  map[string]error // by the place: "start", "charge", "commit", "book", "mail", "end"
	maxTry int
}

func newTill(t *testing.T, maxAttempts int) *till {
	t.Helper()
	l := &till{shop: newShop(t), mail: &provider{}, fails: make(map[string]error), maxTry: maxAttempts}
	var err error
	l.processor, err = consumer.New(t.Context(), consumer.Config{Group: "billing", DB: l.db, Retry: consumer.Retry{MaxAttempts: maxAttempts}})
	require.NoError(t, err)
	l.fromTopic()
	book := l.effect.Commit
	l.effect.Commit = func(ctx context.Context, tx pgx.Tx, charge string) error {
		return errors.Join(l.fails["commit"], book(ctx, tx, charge))
	}
	l.provider.before = func(context.Context, consumer.Call) error { return l.fails["charge"] }
	l.mail.before = func(context.Context, consumer.Call) error { return l.fails["mail"] }
	l.router = consumer.NewRouter(l.processor)
	l.router.Func("Paid", l.handle)
	return l
}

func (l *till) handle(ctx context.Context, ev consumer.Event) error {
	if err := l.fails["start"]; err != nil {
		return err
	}
	if _, err := consumer.Fence(ctx, l.processor, ev, l.effect); err != nil {
		return err
	}
	got, err := consumer.DoNamed(ctx, l.processor, ev, "book", func(ctx context.Context, tx pgx.Tx) (int, error) {
		_, err := tx.Exec(ctx, "INSERT INTO effects (event, consumer_group) VALUES ('book', 'billing')")
		return 41, errors.Join(err, l.fails["book"])
	})
	if err != nil {
		return err
	}
	l.booked = got.Result
	if _, err := consumer.Fence(ctx, l.processor, ev, consumer.Effect[string]{Name: "mail", Do: l.mail.charge}); err != nil {
		return err
	}
	return l.fails["end"]
}

// once checks that each effect was made once, and that nothing is open.
func (l *till) once() {
	l.t.Helper()
	require.Len(l.t, l.provider.calls, 1)
	require.Len(l.t, l.mail.calls, 1)
	require.Equal(l.t, 41, l.booked)
	require.Equal(l.t, 2, l.effects(), "the booking of the charge, and the other")
	require.Equal(l.t, 1, count(l.t, l.db, "SELECT count(*) FROM onceward.processed_events WHERE outcome = 'p'"))
	require.Equal(l.t, 3, count(l.t, l.db, "SELECT count(*) FROM onceward.fences WHERE status = 'COMPLETE' AND expires_at IS NOT NULL AND event IS NULL"))
	require.NoError(l.t, deliver(l.t.Context(), l.router, l.event, consumer.Duplicate))
	require.Len(l.t, l.provider.calls, 1)
}

// places of the handler where it can fail, with how often the provider is called
// by then at each attempt that fails.
var places = []string{"start", "charge", "commit", "book", "mail", "end"}

// TestFuncThatFailsForGood (A1): wherever the handler fails for the last time, the
// event becomes one letter, and its redrive makes what is missing, once.
func TestFuncThatFailsForGood(t *testing.T) {
	for _, place := range places {
		for _, attempts := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s/%d", place, attempts), func(t *testing.T) {
				t.Parallel()
				l := newTill(t, attempts)
				l.fails[place] = errProvider
				for range attempts - 1 {
					_, err := l.router.Handle(t.Context(), l.event)
					require.ErrorIs(t, err, errProvider)
					l.expire()
				}
				require.NoError(t, deliver(t.Context(), l.router, l.event, consumer.DeadLettered))
				require.NoError(t, deliver(t.Context(), l.router, l.event, consumer.DeadLettered), "the claim says so")
				require.Equal(t, 1, l.letters())
				require.Equal(t, 1, count(t, l.db, "SELECT count(*) FROM onceward.processed_events WHERE outcome = 'd'"))
				l.longAgo()
				require.NoError(t, l.recover(l.router, 0), "its letter waits")

				delete(l.fails, place)
				exec(t, l.db, "UPDATE onceward.consumer_dead_letters SET state = 'requested'")
				n, err := l.router.Redrive(t.Context(), 10)
				require.NoError(t, err)
				require.Equal(t, 1, n)
				require.Equal(t, 1, count(t, l.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE state = 'redriven'"))
				if place == "commit" {
					l.provider.calls = l.provider.calls[:1] // with one key each time
				}
				l.once()
			})
		}
	}
}

// TestLetterKeepsEffects (W3): an effect that is complete is not made again by a
// redrive that comes after everything of the event could have gone.
func TestLetterKeepsEffects(t *testing.T) {
	claimstest.OnBoth(t, func(k *claimstest.Database) {
		l := newTill(t, 1)
		l.db = k.Admin
		exec(t, l.db, `CREATE TABLE IF NOT EXISTS effects (event text NOT NULL, consumer_group text NOT NULL)`)
		var err error
		l.processor, err = consumer.New(k.T.Context(), consumer.Config{Group: "billing", DB: l.db, Retry: consumer.Retry{MaxAttempts: 1}})
		require.NoError(k.T, err)
		l.router = consumer.NewRouter(l.processor)
		l.router.Func("Paid", l.handle)
		l.fails["mail"] = errProvider
		l.event.Key = keyAt(k.T, k.Today.Add(time.Minute))
		l.fromTopic()
		require.NoError(k.T, deliver(k.T.Context(), l.router, l.event, consumer.DeadLettered))
		k.Exec("UPDATE onceward.dedup_windows SET floor = now() + interval '9 days', raised_at = now() - interval '1 day'")
		k.Exec("UPDATE onceward.fences SET completed_at = now() - interval '30 days', lease_until = now() - interval '30 days', created_at = now() - interval '30 days'")
		k.Maintain()
		require.Equal(k.T, 3, count(k.T, l.db, "SELECT count(*) FROM onceward.fences WHERE expires_at IS NULL"), "nothing goes while the letter is open")
		require.Equal(k.T, 1, count(k.T, l.db, "SELECT count(*) FROM onceward.processed_events WHERE outcome = 'd'"))
		delete(l.fails, "mail")
		k.Exec("UPDATE onceward.consumer_dead_letters SET state = 'requested'")
		n, err := l.router.Redrive(k.T.Context(), 10)
		require.NoError(k.T, err)
		require.Equal(k.T, 1, n)
		require.Len(k.T, l.provider.calls, 1)
		require.Len(k.T, l.mail.calls, 1)
	})
}

// TestDiscardEndsEffects: what an operator gives up holds no partition back.
func TestDiscardEndsEffects(t *testing.T) {
	l := newTill(t, 1)
	l.fails["mail"] = errProvider
	require.NoError(t, deliver(t.Context(), l.router, l.event, consumer.DeadLettered))
	rows, err := consumerdb.New(l.db).DiscardGroupLetters(t.Context(), consumerdb.DiscardGroupLettersParams{
		ConsumerGroups: []string{"billing"}, Topics: []string{"orders"}, KafkaPartitions: []int32{0}, KafkaOffsets: []int64{7}, Generations: []int32{0},
		Reason: "test", Keep: pgtype.Interval{Days: 30, Valid: true},
	})
	require.NoError(t, err)
	require.Len(t, rows, 1)
	require.Zero(t, count(t, l.db, "SELECT count(*) FROM onceward.fences WHERE expires_at IS NULL"))
	l.longAgo()
	require.NoError(t, l.recover(l.router, 0))
}

// TestEventsAreOpenUntilTheirEnd: the process dies behind any effect, and nobody
// delivers the event again.
func TestEventsAreOpenUntilTheirEnd(t *testing.T) {
	for _, place := range []string{"book", "mail", "end"} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			l := newTill(t, -1)
			l.fails[place] = errProvider
			_, err := l.router.Handle(t.Context(), l.event)
			require.ErrorIs(t, err, errProvider)
			require.Equal(t, 1, count(t, l.db, "SELECT count(*) FROM onceward.fences WHERE event IS NOT NULL"), "the first effect keeps the event")
			require.Zero(t, l.claims())
			delete(l.fails, place)
			require.NoError(t, l.recover(l.router, 0), "somebody may be at it")
			l.longAgo()
			require.NoError(t, l.recover(l.router, 1))
			l.once()
		})
	}
}

// TestEventOfAnEarlierRelease: its first effect has written the claim, and the
// process died before the second. It is no duplicate.
func TestEventOfAnEarlierRelease(t *testing.T) {
	for _, last := range []error{nil, errProvider} {
		l := newTill(t, 1)
		l.fails["mail"] = errProvider
		l.processor, _ = consumer.New(t.Context(), consumer.Config{Group: "billing", DB: l.db, Retry: consumer.Retry{MaxAttempts: -1}})
		first := consumer.NewRouter(l.processor)
		first.Func("Paid", l.handle)
		_, err := first.Handle(t.Context(), l.event)
		require.ErrorIs(t, err, errProvider)
		given := l.event.Fingerprint()
		exec(t, l.db, `INSERT INTO onceward.processed_events (event_id, consumer_group, event_type, namespace, fingerprint, outcome) VALUES ($1, 'billing', 'Paid', 'shop', $2, 'p')`,
			l.event.Key.UUID(), given[:])
		l.expire()
		if l.fails["mail"] = last; last == nil {
			require.NoError(t, deliver(t.Context(), l.router, l.event, consumer.Duplicate))
			l.once()
			continue
		}
		require.NoError(t, deliver(t.Context(), l.router, l.event, consumer.DeadLettered))
		require.Equal(t, 1, l.letters())
	}
}

// TestEffectsOfOneEvent (A2): effects have names, and two of one name are refused.
func TestEffectsOfOneEvent(t *testing.T) {
	s := newShop(t)
	work := func(context.Context, pgx.Tx) (string, error) { return "done", nil }
	fence := func(name string) consumer.Effect[string] {
		return consumer.Effect[string]{Name: name, Do: s.provider.charge}
	}
	handlers := map[string]struct {
		handle consumer.FuncHandler
		want   error
	}{
		"fence, then do": {handle: func(ctx context.Context, ev consumer.Event) error {
			_, err := consumer.Fence(ctx, s.processor, ev, fence("charge"))
			got, doErr := consumer.Do(ctx, s.processor, ev, work)
			if got.Outcome != consumer.Processed || got.Result != "done" {
				doErr = errors.Join(doErr, fmt.Errorf("%+v", got))
			}
			return errors.Join(err, doErr)
		}},
		"do of two names": {handle: func(ctx context.Context, ev consumer.Event) error {
			_, err := consumer.DoNamed(ctx, s.processor, ev, "a", work)
			_, again := consumer.DoNamed(ctx, s.processor, ev, "b", work)
			return errors.Join(err, again)
		}},
		"do twice": {want: consumer.ErrEffectTwice, handle: func(ctx context.Context, ev consumer.Event) error {
			_, err := consumer.Do(ctx, s.processor, ev, work)
			_, _ = consumer.Do(ctx, s.processor, ev, work)
			return err
		}},
		"fence twice": {want: consumer.ErrEffectTwice, handle: func(ctx context.Context, ev consumer.Event) error {
			_, err := consumer.Fence(ctx, s.processor, ev, fence("mail"))
			_, again := consumer.Fence(ctx, s.processor, ev, fence("mail"))
			return errors.Join(err, again)
		}},
		"a failed one tried again": {handle: func(ctx context.Context, ev consumer.Event) error {
			_, _ = consumer.DoNamed(ctx, s.processor, ev, "a", func(context.Context, pgx.Tx) (string, error) { return "", errProvider })
			_, err := consumer.DoNamed(ctx, s.processor, ev, "a", work)
			return err
		}},
		"nothing":            {want: consumer.ErrNoEffect, handle: func(context.Context, consumer.Event) error { return nil }},
		"nothing on purpose": {handle: func(context.Context, consumer.Event) error { return consumer.ErrNothingToDo }},
		"a hidden failure": {want: errProvider, handle: func(ctx context.Context, ev consumer.Event) error {
			_, _ = consumer.Do(ctx, s.processor, ev, func(context.Context, pgx.Tx) (string, error) { return "", errProvider })
			return nil
		}},
		"do within do": {want: consumer.ErrInTx, handle: func(ctx context.Context, ev consumer.Event) error {
			_, err := consumer.Do(ctx, s.processor, ev, func(ctx context.Context, _ pgx.Tx) (string, error) {
				_, err := consumer.DoNamed(ctx, s.processor, ev, "inner", work)
				return "", err
			})
			return err
		}},
	}
	for name, c := range handlers {
		r := consumer.NewRouter(s.processor)
		r.Func("Paid", c.handle)
		ev := newEvent(t)
		if c.want != nil {
			_, err := r.Handle(t.Context(), ev)
			require.ErrorIs(t, err, c.want, name)
			require.False(t, consumer.IsInfrastructure(err), name)
			require.Zero(t, s.claims(), name)
			continue
		}
		require.NoError(t, deliver(t.Context(), r, ev, consumer.Processed), name)
		require.NoError(t, deliver(t.Context(), r, ev, consumer.Duplicate), name)
		require.Equal(t, 1, count(t, s.db, "WITH d AS (DELETE FROM onceward.processed_events RETURNING 1) SELECT count(*) FROM d"), name)
	}
	require.Zero(t, count(t, s.db, "SELECT count(*) FROM onceward.fences f WHERE expires_at IS NULL AND NOT EXISTS (SELECT FROM onceward.fences WHERE name IN ('do', 'mail') AND event_id = f.event_id)"))
}

// TestEffectsInATransaction (C3): they would wait for their own event.
func TestEffectsInATransaction(t *testing.T) {
	s := newShop(t)
	for name, call := range map[string]func(ctx context.Context, ev consumer.Event) error{
		"fence": func(ctx context.Context, ev consumer.Event) error {
			_, err := consumer.Fence(ctx, s.processor, ev, s.effect)
			return err
		},
		"do": func(ctx context.Context, _ consumer.Event) error {
			_, err := consumer.Do(ctx, s.processor, newEvent(t), func(context.Context, pgx.Tx) (int, error) { return 1, nil })
			return err
		},
	} {
		r := consumer.NewRouter(s.processor)
		r.Tx("Paid", func(ctx context.Context, _ pgx.Tx, ev consumer.Event) error { return call(ctx, ev) })
		r.Batch("Moved", consumer.BatchOptions{}, func(ctx context.Context, _ pgx.Tx, ev consumer.Event) error { return call(ctx, ev) })
		_, err := r.Handle(t.Context(), newEvent(t))
		require.ErrorIs(t, err, consumer.ErrInTx, name)
		moved := newEvent(t)
		moved.Type = "Moved"
		require.ErrorIs(t, r.HandleBatch(t.Context(), []consumer.Event{moved})[0].Err, consumer.ErrInTx, name)
	}
	require.Empty(t, s.provider.calls)
}

// TestWhatWasNotApplied (A3): an event for which nothing was done is an error.
func TestWhatWasNotApplied(t *testing.T) {
	s := newShop(t)
	var err error
	s.processor, err = consumer.New(t.Context(), consumer.Config{Group: "billing", DB: s.db, Classes: []consumer.Class{{Pattern: "*", Window: time.Hour}}})
	require.NoError(t, err)
	dead := newEvent(t)
	dead.Source = consumer.Source{Topic: "orders"}
	r := consumer.NewRouter(s.processor)
	r.Tx("Paid", func(context.Context, pgx.Tx, consumer.Event) error { return consumer.DeadLetter(errProvider) })
	require.NoError(t, deliver(t.Context(), r, dead, consumer.DeadLettered))
	old, ahead := newEvent(t), newEvent(t)
	old.Key, ahead.Key, dead.Source = keyAt(t, time.Now().AddDate(0, 0, -10)), keyAt(t, time.Now().Add(10*time.Minute)), consumer.Source{}
	for want, ev := range map[consumer.Outcome]consumer.Event{consumer.Replay: old, consumer.FromFuture: ahead, consumer.DeadLettered: dead} {
		for name, call := range map[string]func() (consumer.Outcome, error){
			"do": func() (consumer.Outcome, error) {
				got, err := consumer.Do(t.Context(), s.processor, ev, func(context.Context, pgx.Tx) (int, error) { return 1, nil })
				return got.Outcome, err
			},
			"fence": func() (consumer.Outcome, error) {
				got, err := consumer.Fence(t.Context(), s.processor, ev, s.effect)
				return got.Outcome, err
			},
			"handle": func() (consumer.Outcome, error) {
				return consumer.Handle(t.Context(), s.processor, ev, func(context.Context, consumer.Event) error { return consumer.ErrNothingToDo })
			},
		} {
			got, err := call()
			require.ErrorIs(t, err, consumer.ErrNotApplied, "%s of %s", name, want)
			require.Equal(t, want, got, name)
			var not *consumer.NotAppliedError
			require.ErrorAs(t, err, &not)
			require.Equal(t, want, not.Outcome)
		}
	}
	require.Empty(t, s.provider.calls)
}

// TestHandle: a receiver that knows no topic makes several effects of an event.
func TestHandle(t *testing.T) {
	l := newTill(t, 1)
	l.event.Source, l.event.RecordHeaders = consumer.Source{}, nil
	l.fails["mail"] = errProvider
	for range 3 {
		_, err := consumer.Handle(t.Context(), l.processor, l.event, l.handle)
		require.ErrorIs(t, err, errProvider, "there is no place for a letter")
		l.expire()
	}
	delete(l.fails, "mail")
	got, err := consumer.Handle(t.Context(), l.processor, l.event, l.handle)
	require.NoError(t, err)
	require.Equal(t, consumer.Processed, got)
	l.once()
}

// TestProviderKeyTTL (C1): a provider that says nothing keeps its keys for a day.
func TestProviderKeyTTL(t *testing.T) {
	s := newShop(t)
	for ttl, want := range map[time.Duration]int{0: 1, consumer.Forever: 0} {
		s.event, s.effect.ProviderKeyTTL = newEvent(t), ttl
		s.died(false)
		require.Equal(t, want, count(t, s.db, `SELECT count(*) FROM onceward.fences WHERE event_id = $1 AND provider_key_until BETWEEN now() + interval '23 hours' AND now() + interval '25 hours'`,
			s.event.Key.UUID()))
	}
}

// TestDeferredConstraintInABatch (B2): an event that fails at the commit is found,
// counted and given up, and its neighbours go on.
func TestDeferredConstraintInABatch(t *testing.T) {
	l := newLine(t)
	exec(t, l.db, `CREATE TABLE strict (n int UNIQUE DEFERRABLE INITIALLY DEFERRED, item text)`)
	evs := l.events(10, "Moved")
	for i := range evs {
		evs[i].Source = consumer.Source{Topic: "stock", Offset: int64(i)}
	}
	l.wrong[evs[4].Key.String()] = func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO strict VALUES (1), (1)")
		return err
	}
	l.wrong[evs[7].Key.String()] = func(ctx context.Context, tx pgx.Tx) error { // deferral goes on behind the check
		_, err := tx.Exec(ctx, "INSERT INTO strict VALUES (2), (2)")
		if err == nil {
			_, err = tx.Exec(ctx, "DELETE FROM strict WHERE ctid = (SELECT max(ctid) FROM strict WHERE n = 2)")
		}
		return err
	}
	for attempt := 1; attempt <= 3; attempt++ {
		for i, d := range l.router.HandleBatch(t.Context(), evs) {
			switch {
			case i == 4 && attempt < 3:
				require.ErrorContains(t, d.Err, "strict_n_key")
				require.False(t, consumer.IsInfrastructure(d.Err))
			case i == 4:
				require.NoError(t, d.Err)
				require.Equal(t, consumer.DeadLettered, d.Outcome)
			default:
				require.NoError(t, d.Err)
				require.True(t, d.Finished())
			}
		}
	}
	require.Equal(t, 9, l.effects())
	require.Equal(t, 1, l.letters())
}
