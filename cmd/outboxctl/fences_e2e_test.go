//go:build e2e

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	claimsdb "github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/claims"
	"github.com/onceward/onceward/internal/operator/fences"
	"github.com/onceward/onceward/outbox"
)

// keeps makes a fence keep its event, as package consumer writes it.
func (d *installation) keeps(key outbox.Key, eventType string) {
	d.t.Helper()
	exec(d.t, d.pool, "UPDATE onceward.fences SET event = jsonb_build_object('key', $2::text, 'type', $3::text) WHERE event_id = $1", key.UUID(), key.String(), eventType)
}

func (d *installation) fenceNow(key outbox.Key) string {
	d.t.Helper()
	return column[string](d, `SELECT concat_ws(' ', name, status, epoch, lease_until < clock_timestamp(), provider_key_until IS NULL, COALESCE(result::text, '-'), event IS NULL)
		FROM onceward.fences WHERE event_id = $1`, key.UUID())[0]
}

func TestFencesAreListedAndShown(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		require.Equal(t, "none\n", fine(t, "fences", "list"))
		live, expired, stale, stuck, complete := newKey(t, "orders"), newKey(t, "orders"), newKey(t, "orders"), newKey(t, "orders"), newKey(t, "orders")
		d.fence(live, "charge", "1 minute", "1 day")
		d.keeps(live, "OrderPaid")
		d.fence(expired, "charge", "-1 minute", "1 day")
		d.fence(stale, "mail", "-1 minute", "-1 second")
		d.fence(stuck, "mail", "-1 minute", "1 day")
		exec(t, d.pool, "UPDATE onceward.fences SET stuck = 'the handler fences nothing' WHERE event_id = $1", stuck.UUID())
		d.fence(complete, "charge", "-1 minute", "1 day")
		exec(t, d.pool, `UPDATE onceward.fences SET status = 'COMPLETE', completed_at = now(), result = '{"id": "ch_1"}' WHERE event_id = $1`, complete.UUID())
		d.claim(complete.UUID(), "billing", "p")
		listed := func(args ...string) (states []string) {
			code, stdout, stderr := call(t, append([]string{"fences", "list", "-o", "json"}, args...)...)
			require.Contains(t, []int{exitFine, exitWrong}, code, stderr)
			for _, f := range decode[fences.Report](t, stdout).Fences {
				states = append(states, f.Name+" "+f.State())
			}
			return states
		}
		const why = "mail stuck: the handler fences nothing"
		require.Equal(t, []string{"charge live", "charge expired", "mail stale", why}, listed())
		require.Equal(t, []string{"charge expired", "mail stale", why}, listed("--expired"))
		require.Equal(t, []string{"mail stale", why}, listed("--stale"))
		require.Len(t, listed("--all"), 5)
		require.Empty(t, listed("--group", "other"))
		require.Contains(t, wrong(t, "fences", "list", "--stale"), stale.UUID().String(), "something waits for an operator")
		fine(t, "fences", "list", "--stale", "--group", "other")
		out := fine(t, "fences", "list", "--all", "--limit", "1")
		require.Contains(t, out, live.String(), "the key is that of the kept event")
		require.Contains(t, out, "there are more; raise --limit")
		require.Contains(t, fine(t, "fences", "list", "--all"), complete.String(), "the key is that of the claim")

		out = fine(t, "fences", "show", complete.String())
		require.Contains(t, out, "the provider was given the key "+complete.String()+"/billing/charge")
		require.Contains(t, out, `result: {"id": "ch_1"}`)
		require.Contains(t, wrong(t, "fences", "show", someKey), "no group has a fence of "+someKey)
		require.Contains(t, wrong(t, "fences", "show", "mail:"+live.UUID().String()), "no group has a fence of", "the kept event has another namespace")
	})
}

func TestFencesReconcileMade(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		exec(t, d.pool, insertWindow, "billing", "*", "7 days", time.Now().AddDate(0, 0, -8))
		exec(t, d.pool, insertWindow, "billing", "Order*", "2 days", time.Now().AddDate(0, 0, -3))
		key := newKey(t, "orders")
		d.fence(key, "charge", "1 hour", "-1 second")
		d.keeps(key, "OrderPaid")
		exec(t, d.pool, "UPDATE onceward.fences SET alone = true")
		made := func(more ...string) []string {
			return append([]string{"fences", "reconcile", key.String(), "--made", "--result", `{"id":"ch_1"}`, "--reason", "asked Stripe"}, more...)
		}
		code, _, stderr := call(t, made("--yes")...)
		require.Equal(t, exitFailed, code)
		require.Contains(t, stderr, "`outboxctl fences release "+key.String()+" --group billing --name charge --reason \"…\"`", "an attempt holds the lease")
		exec(t, d.pool, "UPDATE onceward.fences SET lease_until = now() - interval '1 second'")
		code, _, stderr = call(t, made()...)
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, `this would record that the effect "charge" of `+key.String()+" for group billing was made")
		code, _, stderr = call(t, made("--type", "Other", "--yes")...)
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, `the event of the fence is of type "OrderPaid"`)

		out := fine(t, made("--yes")...)
		require.Contains(t, out, "fence charge of "+key.String()+", group billing: recorded as made, epoch 2")
		require.Contains(t, out, "what the program's Commit would have written with the result is not written")
		require.Equal(t, `charge COMPLETE 2 t f {"id": "ch_1"} t`, d.fenceNow(key))
		require.Equal(t, []bool{true}, column[bool](d, "SELECT expires_at BETWEEN now() + interval '4 days 23 hours' AND now() + interval '5 days 1 hour' FROM onceward.fences"), "twice the class's window and a day")
		require.Equal(t, []string{`billing OrderPaid orders p \x00ff {"id": "ch_1"} ` + key.UUID().String()},
			column[string](d, "SELECT concat_ws(' ', consumer_group, event_type, namespace, outcome, fingerprint, result, event_id) FROM onceward.processed_events"))
		require.Equal(t, []string{"fences reconcile --made billing " + key.String() + "/charge asked Stripe " + d.operator}, d.actions())
		require.Contains(t, fine(t, "fences", "show", key.String()), "asked Stripe")
		code, _, stderr = call(t, made("--yes")...)
		require.Equal(t, exitFailed, code)
		require.Contains(t, stderr, "no PENDING fence of "+key.String()+" is meant")
	})
}

// The event of a fence is claimed where the group would look for it.
func TestFencesReconcileMadeOfALateEvent(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		exec(t, d.pool, insertWindow, "billing", "*", "1 day", time.Now().AddDate(0, 0, -1))
		exec(t, d.pool, "UPDATE onceward.dedup_windows SET bucket = time_window")
		key := late(t, time.Now().AddDate(0, -1, 0))
		d.fence(key, "charge", "-1 minute", "1 day")
		exec(t, d.pool, "UPDATE onceward.fences SET alone = true")
		args := []string{"fences", "reconcile", key.String(), "--made", "--reason", "r", "--yes"}
		code, _, stderr := call(t, args...)
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, "give the event's type with --type")
		fine(t, append(args, "--type", "OrderPaid")...)
		require.Equal(t, "charge COMPLETE 2 t f - t", d.fenceNow(key))
		got := decode[claims.Report](t, fine(t, "processed", "show", key.String(), "-o", "json"))
		require.Len(t, got.Claims, 2, "by arrival")
		pair := claimsdb.IDs(key.UUID(), 24*time.Hour, time.Now())
		require.Equal(t, pair[0], got.Claims[0].ID)
		require.Equal(t, pair[1], got.Claims[1].ID)

		second := newKey(t, "orders")
		d.fence(second, "charge", "-1 minute", "1 day")
		d.claim(second.UUID(), "billing", "p")
		exec(t, d.pool, "UPDATE onceward.fences SET alone = true WHERE event_id = $1", second.UUID())
		require.Contains(t, fine(t, "fences", "reconcile", second.String(), "--made", "--type", "T", "--reason", "r", "--yes"), "the group had claimed the event before")
	})
}

func TestFencesReconcileNotMadeAndRelease(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		key := newKey(t, "orders")
		d.fence(key, "charge", "1 hour", "-1 second")
		d.fence(key, "mail", "1 hour", "1 day")
		d.keeps(key, "OrderPaid")
		code, _, stderr := call(t, "fences", "release", key.String(), "--reason", "r", "--yes")
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, "which fence? there are charge of group billing, mail of group billing; give --group and --name")
		release := []string{"fences", "release", key.String(), "--name", "charge", "--reason", "node-3 is gone"}
		code, _, stderr = call(t, release...)
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, `this would end the lease of fence "charge" of `+key.String())
		require.Contains(t, fine(t, append(release, "--yes")...), "released, epoch 2")
		require.Equal(t, "charge PENDING 2 t f - f", d.fenceNow(key))
		code, _, stderr = call(t, append(release, "--yes")...)
		require.Equal(t, exitFailed, code)
		require.Contains(t, stderr, "the next attempt takes it without waiting")

		exec(t, d.pool, "UPDATE onceward.fences SET stuck = 'x' WHERE name = 'charge'")
		got := decode[fences.Settled](t, fine(t, "fences", "reconcile", key.String(), "--name", "charge", "--not-made", "--reason", "asked Stripe", "--yes", "-o", "json"))
		require.Equal(t, fences.Settled{
			Key: key.String(), Group: "billing", Name: "charge", Did: "not-made", Reason: "asked Stripe", Epoch: 3,
			Notes: []string{"the next delivery, or the recovery job of the group, makes the effect"},
		}, got)
		require.Equal(t, "charge PENDING 3 t t - f", d.fenceNow(key), "the provider keeps its key anew")
		require.Equal(t, []string{"charge"}, column[string](d, "SELECT name FROM onceward.fences WHERE stuck IS NULL AND provider_key_until IS NULL"))
		target := key.String() + "/charge"
		require.Equal(t, []string{"fences release billing " + target + " node-3 is gone " + d.operator, "fences reconcile --not-made billing " + target + " asked Stripe " + d.operator}, d.actions())
		require.Empty(t, column[string](d, "SELECT consumer_group FROM onceward.processed_events"))
		require.Regexp(t, `fences reconcile --not-made +billing +`+target+` .* asked Stripe`, fine(t, "processed", "show", key.String()))
	})
}

// While a dead letter of the event waits neither deliveries nor the recovery job go
// on with it: the fence stays with the operator, who is told of the redrive.
func TestFencesReconcileOfAnEventWithALetter(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		key := newKey(t, "orders")
		d.keep("mail", "orders.order", "handler", &key)
		d.keep("billing", "orders.order", "mismatch", &key)
		at := d.keep("billing", "orders.order", "handler", &key)
		for _, name := range []string{"charge", "mail"} {
			d.fence(key, name, "1 minute", "1 day")
		}
		d.keeps(key, "OrderPaid")
		exec(t, d.pool, "UPDATE onceward.fences SET stuck = 'given up'")
		cure := ": `outboxctl dead redrive " + at.String() + " --group billing --reason \"…\"`"
		says := func(name, made string) string {
			return fine(t, "fences", "reconcile", key.String(), "--name", name, made, "--reason", "r", "--yes")
		}
		require.Contains(t, fine(t, "fences", "release", key.String(), "--name", "charge", "--reason", "r", "--yes"), "only its redrive takes the fence over"+cure)
		exec(t, d.pool, "UPDATE onceward.fences SET lease_until = now() - interval '1 minute'")
		require.Contains(t, says("charge", "--not-made"), "only its redrive makes the effect"+cure)
		require.Contains(t, wrong(t, "fences", "list", "--stale"), "stuck: given up")
		require.Contains(t, says("mail", "--made"), "only its redrive runs the handler on and ends the event"+cure)
		exec(t, d.pool, "UPDATE onceward.fences SET stuck = NULL WHERE name = 'charge'")
		says("charge", "--not-made")
		require.Contains(t, wrong(t, "fences", "list", "--stale"), "stuck: the event waits for the redrive of its dead letter")
		exec(t, d.pool, "UPDATE onceward.consumer_dead_letters SET state = 'requested' WHERE reason = 'handler'")
		require.Contains(t, says("charge", "--not-made"), "the dead letter "+at.String()+" of the event is requested: a member of the group handles it, and makes the effect")
	})
}

// The handler of today has ended the event without the effect: nothing is left to do.
func TestFencesReconcileOfAnEventThatHasEnded(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		for word, note := range map[string]string{"--made": "the event had ended without it", "--not-made": "the event has ended, so that nobody makes the effect"} {
			key := newKey(t, "orders")
			d.claim(key.UUID(), "billing", "p")
			d.fence(key, "mail", "-1 minute", "1 day")
			exec(t, d.pool, "UPDATE onceward.fences SET stuck = 'the handler did not call this fence' WHERE event_id = $1", key.UUID())
			require.Contains(t, wrong(t, "fences", "list", "--stale"), key.String(), "the key is that of the claim")
			require.Contains(t, fine(t, "fences", "reconcile", key.String(), word, "--reason", "r", "--yes"), note)
			require.Equal(t, []bool{true}, column[bool](d, "SELECT expires_at > now() FROM onceward.fences WHERE event_id = $1", key.UUID()))
			require.Equal(t, "none\n", fine(t, "fences", "list"))
		}
	})
}

// A fence that an attempt has taken since the operator looked is left alone.
func TestASettledFenceIsComparedAndSet(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		exec(t, d.pool, insertWindow, "billing", "*", "1 day", time.Now().AddDate(0, 0, -1))
		key := newKey(t, "orders")
		one, db := fences.One{Key: operator.Name{Namespace: key.Namespace(), ID: key.UUID()}}, &operator.Database{Pool: d.pool}
		made := func() (operator.Order[*fences.Settled], error) {
			return fences.PlanMade(t.Context(), db, one, "T", nil)
		}
		notMade := func() (operator.Order[*fences.Settled], error) { return fences.PlanNotMade(t.Context(), db, one) }
		release := func() (operator.Order[*fences.Settled], error) { return fences.PlanRelease(t.Context(), db, one) }
		// settled plans at one lease, and carries out when an attempt has come and gone, or come.
		settled := func(plan func() (operator.Order[*fences.Settled], error), planned, lease string, epoch int) error {
			d.fence(key, "charge", planned, "1 day")
			exec(t, d.pool, "UPDATE onceward.fences SET epoch = 6, alone = true")
			do, err := plan()
			require.NoError(t, err)
			exec(t, d.pool, "UPDATE onceward.fences SET epoch = $1, lease_until = clock_timestamp() + $2::interval", epoch, lease)
			_, err = do.CarryOut(t.Context(), db, "r")
			exec(t, d.pool, "DELETE FROM onceward.fences")
			return err
		}
		const ended, runs = "-1 minute", "1 minute"
		for name, lease := range map[string]string{"an attempt that has ended": ended, "an attempt that runs": runs} {
			require.ErrorIs(t, settled(made, ended, lease, 7), fences.ErrMoved, name)
			require.ErrorIs(t, settled(notMade, ended, lease, 7), fences.ErrMoved, name)
			require.ErrorIs(t, settled(release, runs, lease, 7), fences.ErrMoved, name)
		}
		// The lease alone is what is in the way.
		require.ErrorIs(t, settled(notMade, ended, runs, 6), fences.ErrMoved)
		require.ErrorIs(t, settled(made, ended, runs, 6), fences.ErrMoved)
		require.Empty(t, d.actions())
		require.Empty(t, column[string](d, "SELECT consumer_group FROM onceward.processed_events"))
	})
}
