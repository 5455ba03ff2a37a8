//go:build e2e

package consumer_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
)

// A type that the program does not know stops the group, or becomes a letter that
// is applied once when the program knows it.
func TestUnknownTypes(t *testing.T) {
	d := newLetterGroup(t)
	shipped := newEvent(t)
	shipped.Type = "Shipped"
	rec := d.record(shipped)
	_, err := d.router.HandleRecord(t.Context(), rec)
	require.ErrorIs(t, err, consumer.ErrNoHandler)
	require.True(t, consumer.Permanent(err))
	require.Zero(t, d.letters())

	d.router.Unknown(consumer.UnknownDeadLetter)
	d.deliver(rec, consumer.DeadLettered)
	d.deliver(rec, consumer.DeadLettered)
	require.Equal(t, 1, d.letters())
	require.Equal(t, "no-handler", d.letter(rec).Reason)
	require.Equal(t, 1, d.claims(), "it is given up")
	_, err = d.router.Handle(t.Context(), shipped)
	require.ErrorIs(t, err, consumer.ErrNoHandler, "from no topic: there is no place for a letter")

	d.request()
	d.redrive(1)
	require.Equal(t, "open", d.letter(rec).State)
	require.Contains(t, d.letter(rec).Error, "no handler")
	d.router.Tx("Ship*", effect("billing"))
	d.request()
	d.redrive(1)
	d.applied(1)
	d.deliver(rec, consumer.Duplicate)
	d.applied(1)
}

// An open event is recovered by the handler of the pattern that its type falls
// into, and left alone by a program that has another one.
func TestPatternsRecover(t *testing.T) {
	e := newEnv(t, nil)
	r := e.router("billing", effect("billing"))
	ev := newEvent(t)
	ev.Type = "ChargeAsked"
	fails := true
	handler := func(ctx context.Context, ev consumer.Event) error {
		_, err := consumer.DoNamed(ctx, r.Processor(), ev, "charge", func(ctx context.Context, tx pgx.Tx) (string, error) {
			return "", effect("billing")(ctx, tx, ev)
		})
		if err == nil && fails {
			return errBroken
		}
		return err
	}
	r.Func("Charge*", handler)
	_, err := r.Handle(t.Context(), ev)
	require.ErrorIs(t, err, errBroken)
	exec(t, e.db, "UPDATE onceward.fences SET lease_until = lease_until - interval '1 day', completed_at = completed_at - interval '1 day'")
	fails = false
	other := e.router("billing", effect("billing"))
	other.Func("Mail*", handler)
	done, err := other.RecoverFences(t.Context(), 10)
	require.NoError(t, err)
	require.Zero(t, done)
	done, err = r.RecoverFences(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, 1, done)
	require.NoError(t, e.expect(1, 1))
}
