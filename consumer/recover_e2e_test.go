//go:build e2e

package consumer_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// member is a process of the shop's group whose handler of "Paid" charges.
func (s *shop) member() *consumer.Router {
	r := consumer.NewRouter(s.processor)
	r.Func("Paid", func(ctx context.Context, ev consumer.Event) error {
		_, err := consumer.Fence(ctx, s.processor, ev, s.effect)
		return err
	})
	return r
}

// orphaned leaves a fence behind whose process died longer ago than the recovery
// job waits.
func (s *shop) orphaned(charged bool) {
	s.t.Helper()
	s.died(charged)
	s.longAgo()
}

func (s *shop) longAgo() {
	exec(s.t, s.db, "UPDATE onceward.fences SET lease_until = clock_timestamp() - interval '1 day', completed_at = completed_at - interval '1 day' WHERE expires_at IS NULL")
}

func (s *shop) recover(r *consumer.Router, want int) error {
	s.t.Helper()
	n, err := r.RecoverFences(s.t.Context(), 10)
	require.Equal(s.t, want, n, "%v", err)
	return err
}

// stuck returns why the fences are left to an operator, "" when they are not.
func (s *shop) stuck() (why string) {
	s.t.Helper()
	require.NoError(s.t, s.db.QueryRow(s.t.Context(), "SELECT COALESCE(string_agg(stuck, ', '), '') FROM onceward.fences").Scan(&why))
	return why
}

func TestRecoverFences(t *testing.T) {
	for name, scenario := range map[string]func(t *testing.T, s *shop){
		"before the provider was called":      func(_ *testing.T, s *shop) { recoverOnce(s, false) },
		"after the provider had answered":     func(_ *testing.T, s *shop) { recoverOnce(s, true) },
		"two jobs at once":                    recoverTwice,
		"a live lease is left alone":          recoverLive,
		"a young one too":                     recoverYoung,
		"a stale one is not driven":           recoverStale,
		"a stale one that can be asked about": recoverReconciled,
		"of an event that was given up":       recoverGivenUp,
		"that the handler does not call":      recoverUncalled,
		"that fails again and again":          recoverFailing,
		"of a type without a handler":         recoverUnhandled,
		"below the floor by now":              recoverBelow,
		"of an event that cannot be read":     recoverUnreadable,
		"of another group":                    recoverOther,
		"one of two effects":                  recoverSecondEffect,
		"by an operator's word, a new TTL":    recoverNotMade,
		"what a completed fence keeps":        fenceKeeps,
		"redriven after it was given up":      recoverRedriven,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scenario(t, newShop(t))
		})
	}
}

// recoverOnce: the process died, and nobody delivers the event again.
func recoverOnce(s *shop, charged bool) {
	s.orphaned(charged)
	require.NoError(s.t, s.recover(s.member(), 1))
	require.NoError(s.t, s.recover(s.member(), 0))
	s.once()
}

func recoverTwice(t *testing.T, s *shop) {
	s.orphaned(true)
	s.provider.before = func(ctx context.Context, _ consumer.Call) error {
		n, err := s.member().RecoverFences(ctx, 10) // while the first one is at it
		return errors.Join(err, errorIf(n != 0, "the second job drove it too"))
	}
	require.NoError(t, s.recover(s.member(), 1))
	s.provider.before = nil
	require.Len(t, s.provider.calls, 2)
	s.once()

	s.event, s.provider.charges, s.provider.calls = newEvent(t), nil, nil
	exec(t, s.db, "DELETE FROM effects")
	s.orphaned(false)
	var group sync.WaitGroup
	counts := make(chan int, 8)
	for range cap(counts) {
		group.Go(func() {
			n, err := s.member().RecoverFences(t.Context(), 10)
			if err != nil {
				t.Error(err)
			}
			counts <- n
		})
	}
	group.Wait()
	close(counts)
	total := 0
	for n := range counts {
		total += n
	}
	require.Equal(t, 1, total)
	require.Len(t, s.provider.calls, 1)
	require.Equal(t, 1, s.effects())
}

func errorIf(broken bool, text string) error {
	if broken {
		return errors.New(text)
	}
	return nil
}

func recoverLive(t *testing.T, s *shop) {
	s.died(false)
	require.NoError(t, s.recover(s.member(), 0))
	require.Empty(t, s.provider.calls)
	require.Equal(t, 1, count(t, s.db, "SELECT count(*) FROM onceward.fences WHERE epoch = 1 AND lease_until > clock_timestamp()"))
}

// recoverYoung: whoever delivers the event may be about to try again.
func recoverYoung(t *testing.T, s *shop) {
	s.died(false)
	s.expire()
	require.NoError(t, s.recover(s.member(), 0))
	require.Empty(t, s.provider.calls)
}

func recoverStale(t *testing.T, s *shop) {
	s.old()
	s.longAgo()
	for range 2 {
		require.NoError(t, s.recover(s.member(), 0))
		require.Contains(t, s.stuck(), consumer.ErrFenceStale.Error())
		require.Contains(t, s.stuck(), "outboxctl fences reconcile")
		s.longAgo()
	}
	require.Equal(t, 1, count(t, s.db, "SELECT count(*) FROM onceward.fences WHERE epoch = 3"), "looked at once")
	require.Len(t, s.provider.calls, 1, "only the first attempt called the provider")

	// A delivery finds out for itself.
	_, err := s.fence(t.Context())
	require.ErrorIs(t, err, consumer.ErrFenceStale)
	require.Empty(t, s.stuck())
}

func recoverReconciled(t *testing.T, s *shop) {
	s.old()
	s.longAgo()
	s.effect.Reconcile = func(_ context.Context, c consumer.Call) (string, bool, error) { return "found-" + c.Key, true, nil }
	require.NoError(t, s.recover(s.member(), 1))
	require.Len(t, s.provider.calls, 1)
	require.NoError(t, s.expect(1, 1))
}

// fromTopic lets the event come from Kafka, so that it can be given up.
func (s *shop) fromTopic() {
	s.event.Source = consumer.Source{Topic: "orders", Offset: 7}
	s.event.RecordHeaders = []consumer.Header{
		{Name: outbox.HeaderKey, Value: []byte(s.event.Key.String())}, {Name: record.HeaderEventType, Value: []byte(s.event.Type)},
	}
}

// givenUp is an event whose charge has failed for the last time.
func (s *shop) givenUp() {
	s.t.Helper()
	s.fromTopic()
	s.provider.before = func(context.Context, consumer.Call) error { return consumer.DeadLetter(errProvider) }
	require.NoError(s.t, deliver(s.t.Context(), s.member(), s.event, consumer.DeadLettered))
	s.provider.before = nil
	s.longAgo()
}

func recoverGivenUp(t *testing.T, s *shop) {
	s.givenUp()
	require.NoError(t, s.recover(s.member(), 0))
	require.Contains(t, s.stuck(), "given up")
	s.longAgo()
	exec(t, s.db, "UPDATE onceward.fences SET stuck = NULL")
	require.NoError(t, s.recover(s.member(), 0), "its letter is open")
	require.Equal(t, 1, count(t, s.db, "SELECT count(*) FROM onceward.fences WHERE epoch = 1 AND expires_at IS NULL"), "left alone")
	require.Empty(t, s.provider.calls)
	require.Equal(t, 1, s.letters())
}

// recoverRedriven: an operator redrives the letter of the given-up charge, twice
// at once, while Kafka delivers it again.
func recoverRedriven(t *testing.T, s *shop) {
	s.givenUp()
	require.NoError(t, s.recover(s.member(), 0))
	require.NoError(t, deliver(t.Context(), s.member(), s.event, consumer.DeadLettered))
	exec(t, s.db, `UPDATE onceward.consumer_dead_letters SET state = 'requested', generation = generation + 1`)

	s.provider.before = func(context.Context, consumer.Call) error { return errProvider }
	n, err := s.member().Redrive(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, 1, count(t, s.db, `SELECT count(*) FROM onceward.consumer_dead_letters WHERE state = 'open' AND attempts = 2 AND error LIKE '%provider is down'`))
	require.NoError(t, s.expect(0, 1))

	exec(t, s.db, `UPDATE onceward.consumer_dead_letters SET state = 'requested', generation = generation + 1`)
	s.provider.before = func(ctx context.Context, _ consumer.Call) error {
		n, err := s.member().Redrive(ctx, 10)
		return errors.Join(err, errorIf(n != 0, "the second member settled it"), deliver(ctx, s.member(), s.event, consumer.DeadLettered))
	}
	n, err = s.member().Redrive(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	s.provider.before = nil
	require.Len(t, s.provider.calls, 1)
	s.once()
	require.Equal(t, 1, count(t, s.db, `SELECT count(*) FROM onceward.processed_events WHERE outcome = 'p'`))
	require.Equal(t, 1, count(t, s.db, `SELECT count(*) FROM onceward.consumer_dead_letters WHERE state = 'redriven'`))
	require.NoError(t, deliver(t.Context(), s.member(), s.event, consumer.Duplicate))
}

// recoverUncalled: the effect has another name in the program of today.
func recoverUncalled(t *testing.T, s *shop) {
	s.orphaned(true)
	s.effect.Name = "payment"
	s.provider.charges = nil
	require.NoError(t, s.recover(s.member(), 1), "the event has ended, with the effect of today")
	require.Contains(t, s.stuck(), "did not call this fence")
	s.longAgo()
	require.NoError(t, s.recover(s.member(), 0))
	require.Equal(t, 1, count(t, s.db, "SELECT count(*) FROM onceward.fences WHERE epoch = 2 AND status = 'PENDING'"), "looked at once")
}

// recoverFailing: the pauses grow, each failure is said, and counts; in the end
// the event is given up.
func recoverFailing(t *testing.T, s *shop) {
	var err error
	s.processor, err = consumer.New(t.Context(), consumer.Config{Group: "billing", DB: s.db, Retry: consumer.Retry{MaxAttempts: 3}})
	require.NoError(t, err)
	s.fromTopic()
	s.orphaned(false)
	s.provider.before = func(context.Context, consumer.Call) error { return errProvider }
	for _, minutes := range []int{1, 2} { // its own attempts count, not those of deliveries
		exec(t, s.db, "UPDATE onceward.fences SET lease_until = clock_timestamp() - make_interval(mins => $1) + interval '30 seconds'", minutes)
		require.NoError(t, s.recover(s.member(), 0), "its pause is not over")
		exec(t, s.db, "UPDATE onceward.fences SET lease_until = clock_timestamp() - make_interval(mins => $1) - interval '1 second'", minutes)
		require.ErrorIs(t, s.recover(s.member(), 0), errProvider)
	}
	require.Empty(t, s.stuck())
	s.longAgo()
	require.NoError(t, s.recover(s.member(), 0))
	require.Contains(t, s.stuck(), "given up")
	require.Equal(t, 1, s.letters())
}

func recoverUnhandled(t *testing.T, s *shop) {
	s.orphaned(false)
	r := consumer.NewRouter(s.processor)
	r.Tx("Paid", effect("billing"))
	r.Func("Refunded", func(context.Context, consumer.Event) error { return errProvider })
	require.NoError(t, s.recover(r, 0))
	require.Empty(t, s.stuck())
	require.NoError(t, s.recover(s.member(), 1), "a member that knows the type")
	s.once()
}

// recoverBelow: the floor has passed the event meanwhile. It was accepted when
// the fence began.
func recoverBelow(t *testing.T, s *shop) {
	s.fromTopic()
	s.orphaned(true)
	exec(t, s.db, `UPDATE onceward.dedup_windows SET floor = clock_timestamp() + interval '1 day', raised_at = clock_timestamp()`)
	exec(t, s.db, `INSERT INTO onceward.progress (consumer_group, topic, kafka_partition, low_offset, high_offset) VALUES ('billing', 'orders', 0, 0, 50)`)
	var err error
	s.processor, err = consumer.New(t.Context(), consumer.Config{Group: "billing", DB: s.db})
	require.NoError(t, err)
	require.NoError(t, s.recover(s.member(), 1))
	require.Equal(t, 1, s.effects())
	require.Len(t, s.provider.charges, 1)
	require.NotZero(t, s.claims(), "by arrival")
	require.NoError(t, deliver(t.Context(), s.member(), s.event, consumer.Duplicate))
	require.Zero(t, s.letters())

	// An event that begins only now lies outside.
	s.event.Key = keyAt(t, time.Now())
	s.fromTopic()
	require.NoError(t, deliver(t.Context(), s.member(), s.event, consumer.DeadLettered))
	require.Equal(t, 1, s.effects())
}

func recoverUnreadable(t *testing.T, s *shop) {
	s.orphaned(false)
	exec(t, s.db, `UPDATE onceward.fences SET event = event || '{"key": "shop:odd"}'`)
	require.NoError(t, s.recover(s.member(), 0))
	require.Contains(t, s.stuck(), "decode the event")
}

func recoverOther(t *testing.T, s *shop) {
	s.orphaned(false)
	p, err := consumer.New(t.Context(), consumer.Config{Group: "audit", DB: s.db})
	require.NoError(t, err)
	other := *s
	other.processor = p
	require.NoError(t, s.recover(other.member(), 0))
	require.Empty(t, s.provider.calls)
}

// recoverSecondEffect: the process died within the second of two effects.
func recoverSecondEffect(t *testing.T, s *shop) {
	mail := &provider{before: func(context.Context, consumer.Call) error { return errProvider }}
	r := consumer.NewRouter(s.processor)
	r.Func("Paid", func(ctx context.Context, ev consumer.Event) error {
		if _, err := consumer.Fence(ctx, s.processor, ev, s.effect); err != nil {
			return err
		}
		_, err := consumer.Fence(ctx, s.processor, ev, consumer.Effect[string]{Name: "mail", Do: mail.charge})
		return err
	})
	_, err := r.Handle(t.Context(), s.event)
	require.ErrorIs(t, err, errProvider)
	s.longAgo()
	mail.before = nil
	require.NoError(t, s.recover(r, 1))
	require.Len(t, mail.calls, 1)
	require.Len(t, s.provider.calls, 1)
	require.NoError(t, s.expect(1, 1))
}

// recoverNotMade: an operator says that the stale effect did not happen. It is
// driven, and the provider's time counts anew from there.
func recoverNotMade(t *testing.T, s *shop) {
	s.old()
	s.longAgo()
	require.NoError(t, s.recover(s.member(), 0))
	exec(t, s.db, `UPDATE onceward.fences SET provider_key_until = NULL, stuck = NULL, epoch = epoch + 1, lease_until = clock_timestamp() - interval '1 day'`)
	s.provider.after = func(context.Context, consumer.Call) error { return errProvider }
	require.ErrorIs(t, s.recover(s.member(), 0), errProvider)
	require.Equal(t, 1, count(t, s.db, `SELECT count(*) FROM onceward.fences WHERE provider_key_until BETWEEN clock_timestamp() + interval '22 hours' AND clock_timestamp() + interval '23 hours'`))
	exec(t, s.db, `UPDATE onceward.fences SET provider_key_until = clock_timestamp() + interval '1 hour', lease_until = clock_timestamp() - interval '1 day'`)
	s.provider.after = func(context.Context, consumer.Call) error { return errProvider }
	require.ErrorIs(t, s.recover(s.member(), 0), errProvider)
	require.Equal(t, 1, count(t, s.db, `SELECT count(*) FROM onceward.fences WHERE provider_key_until < clock_timestamp() + interval '1 hour'`), "a takeover does not begin it anew")
	s.longAgo()
	s.provider.after = nil
	require.NoError(t, s.recover(s.member(), 1))
	require.Len(t, s.provider.charges, 1)
	require.NoError(t, s.expect(1, 1))
}

// fenceKeeps: the event for as long as it may be needed, then a date on which
// the row may go: behind every copy that is still a duplicate.
func fenceKeeps(t *testing.T, s *shop) {
	var err error
	s.processor, err = consumer.New(t.Context(), consumer.Config{
		Group: "billing", DB: s.db, Classes: []consumer.Class{{Pattern: "Paid", Window: 10 * time.Hour}},
	})
	require.NoError(t, err)
	s.died(false)
	require.Equal(t, 1, count(t, s.db, `SELECT count(*) FROM onceward.fences WHERE event ->> 'key' = $1 AND event ->> 'type' = 'Paid' AND expires_at IS NULL`, s.event.Key.String()))
	s.expire()
	_, err = s.fence(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, count(t, s.db, `SELECT count(*) FROM onceward.fences WHERE event IS NULL AND expires_at - completed_at BETWEEN interval '44 hours' AND interval '44 hours 1 second'`))
}

// TestRecoverWaitsForTheDatabase: a failure of infrastructure says so, and
// changes nothing.
func TestRecoverWaitsForTheDatabase(t *testing.T) {
	s := newShop(t)
	s.orphaned(false)
	r := s.member()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, call := range []func(context.Context, int) (int, error){r.RecoverFences, r.Redrive} {
		_, err := call(ctx, 10)
		require.True(t, consumer.IsInfrastructure(err), "%v", err)
	}
	require.NoError(t, s.recover(r, 1))
	s.once()
}

// An operator decides about a letter while its Func handler runs, outside any
// transaction: that stands, whatever became of the handler.
func TestRedriveOfAFuncDecidedMeanwhile(t *testing.T) {
	for _, fails := range []error{nil, errProvider} {
		s := newShop(t)
		s.givenUp()
		exec(t, s.db, `UPDATE onceward.consumer_dead_letters SET state = 'requested'`)
		s.provider.after = func(context.Context, consumer.Call) error {
			exec(t, s.db, `UPDATE onceward.consumer_dead_letters SET state = 'discarded', error = 'mine'`) //nolint:contextcheck // an operator's statement, not part of the attempt
			return fails
		}
		n, err := s.member().Redrive(t.Context(), 10)
		require.NoError(t, err)
		require.Zero(t, n)
		require.Equal(t, 1, count(t, s.db, `SELECT count(*) FROM onceward.consumer_dead_letters WHERE state = 'discarded' AND error = 'mine'`))
	}
}

// A Func handler that finds nothing to do says so; its event is claimed all the
// same, and what was given up of it is applied by its redrive.
func TestRedriveOfAPlainFunc(t *testing.T) {
	s := newShop(t)
	s.fromTopic()
	fails, calls := true, 0
	r := consumer.NewRouter(s.processor)
	r.Func("Paid", func(context.Context, consumer.Event) error {
		calls++
		if fails {
			return consumer.DeadLetter(errProvider)
		}
		return consumer.ErrNothingToDo
	})
	require.NoError(t, deliver(t.Context(), r, s.event, consumer.DeadLettered))
	fails = false
	exec(t, s.db, `UPDATE onceward.consumer_dead_letters SET state = 'requested'`)
	n, err := r.Redrive(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, 2, calls)
	require.Equal(t, 1, count(t, s.db, `SELECT count(*) FROM onceward.processed_events WHERE outcome = 'p'`))
}
