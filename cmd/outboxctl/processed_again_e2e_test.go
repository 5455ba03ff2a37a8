//go:build e2e

package main

import (
	"context"
	"regexp"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// billing is a group that counts how often it applies what it is given.
type billing struct {
	*installation
	router *consumer.Router
	offset int64
}

func newBilling(d *installation, classes ...consumer.Class) *billing {
	d.t.Helper()
	exec(d.t, d.pool, "CREATE TABLE public.effects (event_id uuid)")
	p, err := consumer.New(d.t.Context(), consumer.Config{Group: "billing", DB: d.pool, Classes: classes})
	require.NoError(d.t, err)
	b := &billing{installation: d, router: consumer.NewRouter(p)}
	b.router.Tx("OrderPaid", func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		_, err := tx.Exec(ctx, "INSERT INTO public.effects VALUES ($1)", ev.Key.UUID())
		return err
	})
	return b
}

// deliver is a record of the event: its first, or a copy by a replay of this mode.
func (b *billing) deliver(key outbox.Key, mode record.ReplayMode) consumer.Outcome {
	b.t.Helper()
	headers := []consumer.Header{{Name: outbox.HeaderKey, Value: []byte(key.String())}, {Name: record.HeaderEventType, Value: []byte("OrderPaid")}}
	add := func(name, value string) { headers = append(headers, consumer.Header{Name: name, Value: []byte(value)}) }
	if mode != "" {
		id, err := uuid.NewV7()
		require.NoError(b.t, err)
		add(record.HeaderReplayID, id.String())
		add(record.HeaderReplayMode, string(mode))
	}
	if mode == record.ReplayReprocess {
		add(record.HeaderReplayGroup, "billing")
	}
	b.offset++
	outcome, err := b.router.HandleRecord(b.t.Context(), consumer.Record{
		Source: consumer.Source{Topic: "orders.order", Offset: b.offset}, Key: []byte("A"), Value: []byte("{}"), Headers: headers,
	})
	require.NoError(b.t, err)
	return outcome
}

func (b *billing) effects() int {
	b.t.Helper()
	return column[int](b.installation, "SELECT count(*)::int FROM public.effects")[0]
}

var printedReplay = regexp.MustCompile("`outboxctl replay \\S+( --reprocess billing)? --config FILE --reason \"…\"`")

// forget runs processed forget and what it prints: the replay, and the redrive of
// the letter that this becomes.
func (b *billing) forget(key outbox.Key) (printed string) {
	b.t.Helper()
	printed = fine(b.t, "processed", "forget", key.String(), "--group", "billing", "--reason", "r", "--yes")
	found := printedReplay.FindStringSubmatch(printed)
	require.NotNil(b.t, found, printed)
	mode := record.ReplayRedeliver
	if found[1] != "" {
		mode = record.ReplayReprocess
	}
	outcome := b.deliver(key, mode)
	if cure := "dead redrive " + key.String() + " --group billing --reason"; regexp.MustCompile(cure).MatchString(printed) {
		require.Equal(b.t, consumer.DeadLettered, outcome)
		fine(b.t, "dead", "redrive", key.String(), "--group", "billing", "--reason", "r", "--yes", "--wait", "0", "-o", "json")
		done, err := b.router.Redrive(b.t.Context(), 10)
		require.NoError(b.t, err)
		require.Equal(b.t, 1, done)
	}
	return printed
}

// TestForgottenIsAppliedOnceMore: what processed forget prints has the effect made
// a second time, and no copy makes a third.
func TestForgottenIsAppliedOnceMore(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		b := newBilling(d)
		for name, key := range map[string]outbox.Key{"above the floor": newKey(t, "orders"), "below it": late(t, time.Now().AddDate(0, -1, 0))} {
			exec(d.t, d.pool, "DELETE FROM public.effects")
			require.Equal(d.t, consumer.Processed, b.deliver(key, ""), name)
			require.Contains(d.t, b.forget(key), "Not --reprocess as well", name)
			require.Equal(d.t, 2, b.effects(), name)
			for range 2 {
				b.deliver(key, record.ReplayRedeliver)
			}
			require.Equal(d.t, 2, b.effects(), name)
		}
	})
}

// TestForgottenBelowTheFloorIsLate: a copy that nobody has replayed is applied at once.
func TestForgottenBelowTheFloorIsLate(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		b, key := newBilling(d), late(t, time.Now().AddDate(0, -1, 0))
		b.deliver(key, "")
		printed := fine(d.t, "processed", "forget", key.String(), "--group", "billing", "--reason", "r", "--yes")
		require.Contains(d.t, printed, "a replayed copy of it becomes a dead letter")
		require.Contains(d.t, printed, "A copy that the producer or the relay sends again is late, and applied as the class says of late events")
		require.Equal(d.t, consumer.Processed, b.deliver(key, ""))
		require.Equal(d.t, 2, b.effects())
	})
}

// TestForgetAndReprocessApplyTwice is what processed forget warns of.
func TestForgetAndReprocessApplyTwice(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		b, key := newBilling(d), newKey(t, "orders")
		b.deliver(key, "")
		fine(d.t, "processed", "forget", key.String(), "--group", "billing", "--reason", "r", "--yes")
		require.Equal(d.t, consumer.Processed, b.deliver(key, record.ReplayReprocess))
		require.Equal(d.t, consumer.Processed, b.deliver(key, record.ReplayRedeliver))
		require.Equal(d.t, 3, b.effects())
	})
}

// TestForgottenAfterItWasGivenUp: a discarded letter says so for good, and plain copies
// are left out where letters are asked.
func TestForgottenAfterItWasGivenUp(t *testing.T) {
	for name, tc := range map[string]struct {
		classes []consumer.Class
		at      time.Time
	}{
		"below the floor": {nil, time.Now().AddDate(0, -1, 0)},
		"by arrival":      {[]consumer.Class{{Pattern: "*", Window: time.Hour, Keyed: consumer.ByArrival}}, time.Now()},
	} {
		t.Run(name, func(t *testing.T) {
			onConsumerInstallations(t, func(d *installation) {
				b, key := newBilling(d, tc.classes...), late(t, tc.at)
				b.deliver(key, "")
				at := d.keep("billing", "orders.order", "handler", &key)
				exec(d.t, d.pool, "UPDATE onceward.consumer_dead_letters SET claim_id = event_id")
				fine(d.t, "dead", "discard", "--side", "consumer", at.String(), "--reason", "r", "--yes")
				printed := b.forget(key)
				require.Contains(d.t, printed, "was given up, so that plain copies of it are left out")
				require.Equal(d.t, 2, b.effects())
				require.Equal(d.t, consumer.DeadLettered, b.deliver(key, record.ReplayRedeliver))
				require.Equal(d.t, 2, b.effects())
			})
		})
	}
}
