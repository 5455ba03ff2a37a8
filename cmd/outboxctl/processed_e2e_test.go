//go:build e2e

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	claimsdb "github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/claims"
	"github.com/onceward/onceward/internal/operator/letters"
	"github.com/onceward/onceward/outbox"
)

const (
	insertClaim = `INSERT INTO onceward.processed_events (event_id, consumer_group, event_type, namespace, fingerprint, outcome, result)
		VALUES ($1, $2, 'OrderPaid', 'orders', '\x00ff', $3, '{"quote": 1}')`
	insertWindow = `INSERT INTO onceward.dedup_windows (consumer_group, class, time_window, floor) VALUES ($1, $2, $3::interval, $4)`
	insertFence  = `INSERT INTO onceward.fences (event_id, consumer_group, name, owner, lease_until, request_fingerprint, provider_key_until)
		VALUES ($1, $2, $3, 'worker-1', clock_timestamp() + $4::interval, '\x00ff', clock_timestamp() + $5::interval)`
)

// late returns a key of the namespace orders with an event time.
func late(t *testing.T, at time.Time) outbox.Key {
	t.Helper()
	key, err := outbox.DeriveKey("orders", at, "invoice", uuid.NewString())
	require.NoError(t, err)
	return key
}

func (d *installation) claim(id uuid.UUID, group, outcome string) {
	d.t.Helper()
	exec(d.t, d.pool, insertClaim, id, group, outcome)
}

func (d *installation) fence(key outbox.Key, name, lease, provider string) {
	d.t.Helper()
	exec(d.t, d.pool, insertFence, key.UUID(), "billing", name, lease, provider)
}

func TestProcessedShow(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		key := newKey(t, "orders")
		require.Contains(t, wrong(t, "processed", "show", key.String()), "no consumer group has anything of it")
		d.claim(key.UUID(), "billing", "p")
		d.claim(key.UUID(), "mail", "d")
		at := d.keep("mail", "orders.order", "handler", &key)
		exec(t, d.pool, `INSERT INTO onceward.attempts (event_id, consumer_group, attempts, last_error, expires_at) VALUES ($1, 'mail', 20, 'mailbox full', now())`, key.UUID())
		d.fence(key, "charge", "1 minute", "1 day")
		out := fine(t, "processed", "show", key.String())
		require.Regexp(t, `billing +processed +\S+ \S+ +`+key.UUID().String()+` +OrderPaid +00ff +\{"quote": 1\}`, out)
		require.Regexp(t, `mail +dead`, out)
		require.Regexp(t, `mail +20 +mailbox full`, out)
		require.Regexp(t, `billing +charge +live +1 `, out)
		require.Regexp(t, `mail +open +`+at.String(), out)
		got := decode[claims.Report](t, fine(t, "processed", "show", key.String(), "--group", "billing", "-o", "json"))
		require.Len(t, got.Claims, 1)
		require.Equal(t, "00ff", got.Claims[0].Fingerprint)
		require.JSONEq(t, `{"quote": 1}`, string(got.Claims[0].Result))
		require.Empty(t, got.Letters)
		require.Contains(t, wrong(t, "processed", "show", "billing:"+key.UUID().String()), "this UUID belongs to namespace orders")
	})
}

// A late event is claimed by arrival, in the buckets of its class; claims of
// the first and the last partition are found, and of every window.
func TestProcessedShowFindsClaimsByArrival(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		now := time.Now()
		key := late(t, now.AddDate(0, -6, 0))
		exec(t, d.pool, insertWindow, "billing", "*", "3 hours", now)
		exec(t, d.pool, insertWindow, "mail", "Order*", "1 day", now)
		require.Contains(t, wrong(t, "processed", "show", key.String()), "group billing class *: the event is below its floor")
		exec(t, d.pool, "UPDATE onceward.dedup_windows SET retired_at = now() WHERE consumer_group = 'mail'")
		require.NotContains(t, wrong(t, "processed", "show", key.String()), "group mail", "a retired class judges nothing")
		exec(t, d.pool, "UPDATE onceward.dedup_windows SET retired_at = NULL")
		for _, at := range []time.Time{now.AddDate(0, 0, -7), now, now.AddDate(0, 0, 14)} {
			d.claim(claimsdb.IDs(key.UUID(), 3*time.Hour, at)[0], "billing", "p")
		}
		pair := claimsdb.IDs(key.UUID(), 24*time.Hour, now)
		d.claim(pair[0], "mail", "p")
		d.claim(pair[1], "mail", "p")
		got := decode[claims.Report](t, fine(t, "processed", "show", key.String(), "-o", "json"))
		require.Len(t, got.Claims, 5)
		for _, v := range got.Claims {
			require.True(t, v.ByArrival)
		}
		require.Empty(t, got.Notes)
		_, _, stderr := call(t, "processed", "forget", key.String(), "--group", "mail", "--reason", "r")
		require.Contains(t, stderr, "without forgetting, `outboxctl replay "+key.String()+" --reprocess mail --config FILE --reason \"…\"` has it applied")
		out := fine(t, "processed", "forget", key.String(), "--group", "mail", "--reason", "r", "--yes")
		require.Contains(t, out, "group mail has forgotten "+key.String())
		require.Contains(t, out, "so that a replayed copy of it becomes a dead letter")
		require.Len(t, decode[claims.Report](t, fine(t, "processed", "show", key.String(), "-o", "json")).Claims, 3, "both ids are gone, those of the other group are there")
	})
}

// Where claims may lie that nobody sees, processed show says so.
func TestProcessedShowOfADayThatIsNotThere(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		key := late(t, time.Now().AddDate(0, 0, -2))
		d.claim(key.UUID(), "billing", "p")
		exec(t, d.pool, "ALTER TABLE onceward.processed_events DETACH PARTITION onceward.processed_events_"+key.Time().UTC().Format("20060102"))
		require.Contains(t, wrong(t, "processed", "show", key.String()), "no partition takes its day, so that its claim is not seen: `outboxctl audit` says what to do")
		exec(t, d.pool, "CREATE TABLE onceward.rest PARTITION OF onceward.processed_events DEFAULT")
		require.Contains(t, wrong(t, "processed", "show", key.String()), "claims of the event may be hidden: table has a DEFAULT partition: onceward.rest")
		require.Contains(t, wrong(t, "migrate", "status", "--side", "consumer"), "`outboxctl audit` prints what moves its rows to their days and drops it")
	})
}

func TestProcessedForget(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		key := newKey(t, "orders")
		forget := func(more ...string) []string {
			return append([]string{"processed", "forget", key.String(), "--group", "billing", "--reason", "applied to the wrong account"}, more...)
		}
		require.Contains(t, wrong(t, forget("--yes")...), "group billing has no claim on "+key.String())
		d.claim(key.UUID(), "billing", "p")
		d.claim(key.UUID(), "mail", "p")
		exec(t, d.pool, `INSERT INTO onceward.attempts (event_id, consumer_group, attempts, last_error, expires_at) SELECT $1, unnest('{billing,mail}'::text[]), 3, 'x', now()`, key.UUID())
		d.fence(key, "charge", "1 minute", "1 day")
		code, _, stderr := call(t, forget("--yes")...)
		require.Equal(t, exitFailed, code)
		require.Contains(t, stderr, "`outboxctl fences reconcile "+key.String()+" --group billing --name charge --made --reason \"…\"`, or --not-made")
		exec(t, d.pool, "UPDATE onceward.fences SET status = 'COMPLETE', completed_at = now(), expires_at = now() + interval '1 day'")
		code, _, stderr = call(t, forget()...)
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, "this would forget that group billing has claimed "+key.String()+" (processed, ")
		left := func() []string {
			return column[string](d, "SELECT consumer_group FROM onceward.processed_events UNION ALL SELECT 'try ' || consumer_group FROM onceward.attempts ORDER BY 1")
		}
		require.Equal(t, []string{"billing", "mail", "try billing", "try mail"}, left())

		mismatch, failed := d.keep("billing", "orders.order", "mismatch", &key), d.keep("billing", "orders.order", "handler", &key)
		got := decode[claims.Forgotten](t, fine(t, forget("--yes", "-o", "json")...))
		require.Equal(t, []uuid.UUID{key.UUID()}, got.Forgotten)
		require.Contains(t, strings.Join(got.Notes, "\n"), "`outboxctl replay "+key.String()+" --config FILE --reason \"…\"`")
		require.Contains(t, strings.Join(got.Notes, "\n"), "the effects charge are not made again")
		discard := func(at letters.Place) string {
			return "`outboxctl dead discard --side consumer " + at.String() + " --group billing --reason \"…\"`"
		}
		require.Contains(t, got.Notes, "its dead letter "+mismatch.String()+" has other content, and can never be applied: "+discard(mismatch))
		require.Contains(t, got.Notes, "its dead letter "+failed.String()+" still waits: `outboxctl dead redrive "+failed.String()+" --group billing --reason \"…\"` or "+discard(failed))
		require.Equal(t, []string{"mail", "try mail"}, left())
		require.Equal(t, []string{"processed forget billing " + key.String() + " applied to the wrong account " + d.operator}, d.actions())
		require.Contains(t, wrong(t, forget("--yes")...), "nothing was forgotten")
	})
}

// The database itself refuses to forget while a fence is PENDING, for one that
// begins after the look.
func TestNothingIsForgottenWhileAFenceIsPending(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		key := newKey(t, "orders")
		d.claim(key.UUID(), "billing", "p")
		db := &operator.Database{Pool: d.pool}
		order, _, err := claims.PlanForget(t.Context(), db, operator.Name{Namespace: key.Namespace(), ID: key.UUID()}, "billing")
		require.NoError(t, err)
		require.NoError(t, order.Forgettable())
		d.fence(key, "charge", "-1 minute", "1 day")
		report, err := order.CarryOut(t.Context(), db, "r")
		require.ErrorContains(t, err, "or an effect of the event has begun")
		require.Nil(t, report)
		require.Len(t, column[string](d, "SELECT consumer_group FROM onceward.processed_events"), 1)
		require.Empty(t, d.actions())
	})
}

// What has no key, because its namespace is none or not known, is named by its UUID, as
// it is printed.
func TestAUUIDAloneNamesAnEvent(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		dead, open, alone := newKey(t, "orders"), newKey(t, "orders"), newKey(t, "orders")
		exec(t, d.pool, "INSERT INTO onceward.processed_events (event_id, consumer_group, event_type, namespace, fingerprint, outcome) VALUES ($1, 'billing', 'OrderPaid', 'No Namespace', '', 'd')", dead.UUID())
		require.Contains(t, fine(t, pasted(t, wrong(t, "audit"))[0][0], "show", dead.UUID().String()), "dead")
		require.Contains(t, fine(t, append(pasted(t, wrong(t, "audit"))[0], "--yes")...), "has forgotten "+dead.UUID().String())

		at := d.keep("billing", "t", "handler", &open)
		exec(t, d.pool, "UPDATE onceward.consumer_dead_letters SET namespace = NULL")
		require.Contains(t, fine(t, "processed", "show", open.UUID().String()), at.String())

		d.fence(alone, "charge", "1 hour", "1 day")
		exec(t, d.pool, "UPDATE onceward.fences SET alone = true")
		name := alone.UUID().String()
		require.Contains(t, fine(t, "fences", "list"), name)
		require.Contains(t, fine(t, "fences", "show", name), "charge")
		fine(t, "fences", "release", name, "--reason", "r", "--yes")
		_, _, stderr := call(t, "fences", "reconcile", name, "--made", "--type", "OrderPaid", "--reason", "r", "--yes")
		require.Contains(t, stderr, "give the whole KEY")
		d.keeps(alone, "OrderPaid")
		require.Contains(t, fine(t, "fences", "show", name), "the provider was given the key "+alone.String()+"/billing/charge", "the kept event says whose it is")
		exec(t, d.pool, insertWindow, "billing", "*", "7 days", daysAgo(7))
		fine(t, "fences", "reconcile", name, "--made", "--reason", "r", "--yes")
		require.Equal(t, []string{"orders"}, column[string](d, "SELECT namespace FROM onceward.processed_events"))
	})
}
