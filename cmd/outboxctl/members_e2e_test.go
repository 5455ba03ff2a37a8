//go:build e2e

package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/operator/fences"
	"github.com/onceward/onceward/record"
)

// program is a member of the group billing, as users write it.
type program struct {
	t         *testing.T
	processor *consumer.Processor
	router    *consumer.Router
	fails     error // what the handler returns
	applied   []consumer.Event
	effect    consumer.Effect[string]
}

func (d *installation) program() *program {
	d.t.Helper()
	p, err := consumer.New(d.t.Context(), consumer.Config{Group: "billing", DB: d.pool, Retry: consumer.Retry{MaxAttempts: 1}})
	require.NoError(d.t, err)
	m := &program{t: d.t, processor: p, router: consumer.NewRouter(p)}
	m.router.Tx("OrderPaid", func(_ context.Context, _ pgx.Tx, ev consumer.Event) error {
		if m.fails == nil {
			m.applied = append(m.applied, ev)
		}
		return m.fails
	})
	m.router.Func("ChargeAsked", func(ctx context.Context, ev consumer.Event) error {
		_, err := consumer.Fence(ctx, p, ev, m.effect)
		return err
	})
	return m
}

func (m *program) handle(ev consumer.Event, want consumer.Outcome) {
	m.t.Helper()
	outcome, err := m.router.Handle(m.t.Context(), ev)
	require.NoError(m.t, err)
	require.Equal(m.t, want, outcome)
}

func paid(t *testing.T, at time.Time, offset int64) consumer.Event {
	t.Helper()
	return consumer.Event{
		Event:  record.Event{Key: late(t, at), Type: "OrderPaid", AggregateID: "A", Payload: []byte("{}")},
		Source: consumer.Source{Topic: "orders.order", Offset: offset}, RecordHeaders: []consumer.Header{},
	}
}

// withHeaders makes the event one that came from a record, so that its letter
// can be read again.
func withHeaders(ev consumer.Event) consumer.Event {
	for name, value := range map[string]string{"idempotency-key": ev.Key.String(), "event-type": ev.Type} {
		ev.RecordHeaders = append(ev.RecordHeaders, consumer.Header{Name: name, Value: []byte(value)})
	}
	return ev
}

// A member of the group obeys: what fails again is open again, what succeeds is
// applied once.
func TestMembersObeyARedrive(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		m := d.program()
		ev := withHeaders(paid(t, time.Now(), 7))
		m.fails = errors.New("no such account")
		m.handle(ev, consumer.DeadLettered)
		redrive := func(code int) string {
			t.Helper()
			ended := make(chan error, 1)
			go func() { ended <- m.obey(t.Context()) }()
			got, stdout, stderr := call(t, "dead", "redrive", ev.Key.String(), "--reason", "account made", "--yes")
			require.NoError(t, <-ended)
			require.Equal(t, code, got, stdout+stderr)
			return stdout
		}
		require.Contains(t, redrive(exitWrong), "failed again: ")
		m.fails = nil
		require.Contains(t, redrive(exitFine), "redrive of 1 letter: 1 done, 0 pending, 0 failed")
		require.Len(t, m.applied, 1)
		m.handle(ev, consumer.Duplicate)
		require.Regexp(t, `billing +processed`, fine(t, "processed", "show", ev.Key.String()))
	})
}

// obey redrives until it has decided about a letter.
func (m *program) obey(ctx context.Context) error {
	for {
		if n, err := m.router.Redrive(ctx, 10); err != nil || n > 0 {
			return err
		}
	}
}

// An event that a group was made to forget is applied again by its next
// delivery, a late one too.
func TestMembersForget(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		m := d.program()
		for offset, at := range []time.Time{time.Now(), time.Now().AddDate(0, -2, 0)} {
			ev := paid(t, at, int64(offset))
			m.applied = nil
			m.handle(ev, consumer.Processed)
			require.Equal(t, offset == 1, m.applied[0].Late)
			m.handle(ev, consumer.Duplicate)
			require.Regexp(t, `billing +processed`, fine(t, "processed", "show", ev.Key.String()))
			fine(t, "processed", "forget", ev.Key.String(), "--group", "billing", "--reason", "r", "--yes")
			wrong(t, "processed", "show", ev.Key.String())
			m.handle(ev, consumer.Processed)
			require.Len(t, m.applied, 2)
		}
	})
}

// The attempt whose lease an operator ends completes nothing, and the next one
// takes over.
func TestMembersLoseAReleasedLease(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		m := d.program()
		ev := paid(t, time.Now(), 0)
		ev.Type = "ChargeAsked"
		var keys []string
		release := func() { fine(t, "fences", "release", ev.Key.String(), "--reason", "node-3 is gone", "--yes") }
		m.effect = consumer.Effect[string]{Name: "charge", Lease: time.Hour, Do: func(_ context.Context, c consumer.Call) (string, error) {
			if keys = append(keys, c.Key); len(keys) == 1 {
				release()
			}
			return "ch_1", nil
		}}
		_, err := consumer.Fence(t.Context(), m.processor, ev, m.effect)
		require.ErrorIs(t, err, consumer.ErrLeaseLost)
		require.Equal(t, "charge PENDING 2 t f - f", d.fenceNow(ev.Key))
		m.handle(ev, consumer.Processed)
		require.Equal(t, `charge COMPLETE 3 f f "ch_1" t`, d.fenceNow(ev.Key))
		require.Equal(t, keys[0], keys[1])
		shown := decode[fences.Report](t, fine(t, "fences", "show", ev.Key.String(), "-o", "json"))
		require.Equal(t, keys[0], shown.Fences[0].ProviderKey)
	})
}

// A fence whose provider may have forgotten its key is not driven until an
// operator says what happened; then it is, or deliveries get the result.
func TestMembersBelieveTheOperator(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		m := d.program()
		stale := func(offset int64) consumer.Event {
			ev := paid(t, time.Now(), offset)
			ev.Type = "ChargeAsked"
			m.effect = consumer.Effect[string]{
				Name: "charge", Lease: time.Hour, ProviderKeyTTL: time.Hour,
				Do: func(context.Context, consumer.Call) (string, error) { panic("the process dies") },
			}
			_, err := consumer.Fence(t.Context(), m.processor, ev, m.effect)
			require.ErrorContains(t, err, "the process dies")
			exec(t, d.pool, "UPDATE onceward.fences SET provider_key_until = now() - interval '1 second' WHERE event_id = $1", ev.Key.UUID())
			return ev
		}
		ev := stale(0)
		calls := 0
		m.effect.Do = func(context.Context, consumer.Call) (string, error) { calls++; return "ch_2", nil }
		require.Contains(t, wrong(t, "fences", "list", "--stale"), ev.Key.String())
		fine(t, "fences", "reconcile", ev.Key.String(), "--made", "--result", `"ch_1"`, "--reason", "asked", "--yes")
		receipt, err := consumer.Fence(t.Context(), m.processor, ev, m.effect)
		require.NoError(t, err)
		require.Equal(t, consumer.Duplicate, receipt.Outcome)
		require.Equal(t, "ch_1", receipt.Result)
		m.handle(ev, consumer.Duplicate)
		require.Zero(t, calls)

		ev = stale(1)
		m.effect.Do = func(context.Context, consumer.Call) (string, error) { calls++; return "ch_2", nil }
		_, err = consumer.Fence(t.Context(), m.processor, ev, m.effect)
		require.ErrorIs(t, err, consumer.ErrFenceStale)
		fine(t, "fences", "reconcile", ev.Key.String(), "--not-made", "--reason", "asked", "--yes")
		m.handle(ev, consumer.Processed)
		require.Equal(t, 1, calls)
		require.Regexp(t, `^charge COMPLETE \d+ . f "ch_2" t$`, d.fenceNow(ev.Key), "the provider's time began anew")
	})
}
