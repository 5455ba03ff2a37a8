//go:build e2e

package consumer_test

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/webhook"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// TestFloorsAreReadAgain: a process does not rely on a floor for longer than
// retention waits.
func TestFloorsAreReadAgain(t *testing.T) {
	t.Parallel()
	b := newBelow(t, nil, consumer.Class{}, 2)
	exec(t, b.db, "UPDATE onceward.dedup_windows SET floor = floor - interval '5 days', time_window = '5 days'")
	p := b.processor()
	r := consumer.NewRouter(p)
	r.Tx("Paid", effect("billing"))
	require.NoError(t, deliver(t.Context(), r, b.event(1), consumer.Processed))
	exec(t, b.db, "UPDATE onceward.dedup_windows SET floor = floor + interval '5 days'")
	consumer.AgeFloors(p, 9*time.Second)
	require.NoError(t, deliver(t.Context(), r, b.event(2), consumer.Processed), "it relies on what it knows")
	consumer.AgeFloors(p, 2*time.Second)
	require.NoError(t, deliver(t.Context(), r, b.event(3), consumer.DeadLettered))

	exec(t, b.db, "UPDATE onceward.dedup_windows SET retired_at = now()")
	consumer.AgeFloors(p, 11*time.Second)
	_, err := r.Handle(t.Context(), b.event(4))
	require.ErrorContains(t, err, "was retired")
	require.True(t, consumer.IsInfrastructure(err), "it is tried again")
	require.NoError(t, deliver(t.Context(), r, b.event(4), consumer.DeadLettered), "with the floor that holds by now")
	require.Zero(t, count(t, b.db, "SELECT count(*) FROM onceward.dedup_windows WHERE retired_at IS NOT NULL"), "whoever uses a class registers it")
}

// TestDedupOverTheEdges: keys on both sides of a partition's, a month's and a
// year's edge are each applied once.
func TestDedupOverTheEdges(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	edges := []time.Time{time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC)}
	for _, edge := range edges {
		_, err := partition.Ensure(t.Context(), e.db, "onceward.processed_events", "event_id", partition.Span{First: edge.Add(-time.Hour), Last: edge, Reopen: true})
		require.NoError(t, err)
	}
	e.router("billing", effect("billing"))
	exec(t, e.db, "UPDATE onceward.dedup_windows SET floor = '2025-12-31T00:00:00Z'")
	r := e.router("billing", effect("billing"))
	n := 0
	for _, edge := range edges {
		for _, at := range []time.Time{edge.Add(-time.Millisecond), edge, edge.Add(time.Millisecond)} {
			ev := newEvent(t)
			ev.Key = keyAt(t, at)
			require.NoError(t, deliver(t.Context(), r, ev, consumer.Processed), at)
			require.NoError(t, deliver(t.Context(), r, ev, consumer.Duplicate), at)
			require.NoError(t, deliver(t.Context(), e.router("billing", effect("billing")), ev, consumer.Duplicate), at)
			n++
		}
	}
	require.NoError(t, e.expect(n, n))
}

func TestRegistration(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	register := func(c consumer.Class) error {
		_, err := consumer.New(t.Context(), consumer.Config{Group: "billing", DB: e.db, Classes: []consumer.Class{c}})
		return err
	}
	floor := func() (at time.Time) {
		require.NoError(t, e.db.QueryRow(t.Context(), "SELECT floor FROM onceward.dedup_windows WHERE class = 'Paid'").Scan(&at))
		return at.UTC()
	}
	today := partition.Day(time.Now())
	c := consumer.Class{Pattern: "Paid", Window: 50 * time.Hour}
	require.NoError(t, register(c))
	require.Equal(t, partition.Day(time.Now().Add(-50*time.Hour)), floor(), "a window before now")

	c.Window = 100 * 24 * time.Hour
	require.NoError(t, register(c))
	require.Equal(t, partition.Day(time.Now().Add(-50*time.Hour)), floor(), "never lowered, not by a longer window either")
	require.Equal(t, 1, count(t, e.db, "SELECT count(*) FROM onceward.dedup_windows WHERE time_window = interval '2400 hours'"))

	other := c
	other.Keyed, other.Window = consumer.ByArrival, 31*24*time.Hour
	require.ErrorContains(t, register(other), "keyed by event-time in the database and by arrival in the configuration")

	exec(t, e.db, "DELETE FROM onceward.dedup_windows")
	require.NoError(t, register(c))
	require.Equal(t, today.AddDate(0, 0, -7), floor(), "no further back than the oldest partition")

	exec(t, e.db, "INSERT INTO onceward.dedup_horizon (dropped_before) VALUES ($1)", today.AddDate(0, 0, -4))
	exec(t, e.db, "DELETE FROM onceward.dedup_windows")
	require.NoError(t, register(c))
	require.Equal(t, today.AddDate(0, 0, -4), floor(), "what is about to be dropped is not relied on")

	exec(t, e.db, "UPDATE onceward.dedup_windows SET retired_at = now(), floor = floor - interval '90 days'")
	require.NoError(t, register(c))
	require.Equal(t, today.AddDate(0, 0, -4), floor(), "a retired group held nothing back")

	r := consumer.NewRouter(must(consumer.New(t.Context(), consumer.Config{Group: "billing", DB: e.db, Classes: []consumer.Class{c}})))
	r.Tx("Refunded", nothing)
	require.ErrorContains(t, r.Err(), "no class of Config.Classes matches")
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestAgesOfDuplicates: what the window advisor reads.
func TestAgesOfDuplicates(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	p := must(consumer.New(t.Context(), consumer.Config{Group: "billing", DB: e.db}))
	r := consumer.NewRouter(p)
	r.Tx("Paid", effect("billing"))
	ev := newEvent(t)
	ev.Key = keyAt(t, time.Now().Add(-time.Hour))
	ev.Source = consumer.Source{Topic: windowTopic}
	require.NoError(t, deliver(t.Context(), r, ev, consumer.Processed))
	stream := ev.Key.Time().Add(100 * time.Second)
	mark := consumer.Mark{Topic: windowTopic, High: 1, FinishedTime: stream}
	progress := must(p.Progress(t.Context()))
	require.NoError(t, p.SaveProgress(t.Context(), progress.History, []consumer.Mark{mark}))
	for range 3 {
		require.NoError(t, deliver(t.Context(), r, ev, consumer.Duplicate))
	}
	require.ErrorIs(t, p.SaveProgress(t.Context(), "another", nil), consumer.ErrHistory, "and nothing counted is lost")
	require.NoError(t, p.SaveProgress(t.Context(), progress.History, nil))
	require.Equal(t, 1, count(t, e.db, `SELECT count(*) FROM onceward.redeliveries
		WHERE event_type = 'Paid' AND age_log2 = 6 AND seen = 3 AND oldest = interval '100 seconds'`), "behind stream time, not behind the clock")

	require.ErrorIs(t, p.SaveProgress(t.Context(), "another", nil), consumer.ErrHistory, "with nothing to write too")

	// A partition read to its end counts what the group has finished elsewhere.
	idle := consumer.Mark{Topic: windowTopic, Partition: 1, High: -1, AtEnd: true}
	require.NoError(t, p.SaveProgress(t.Context(), progress.History, []consumer.Mark{idle}))
	require.Equal(t, 2, count(t, e.db, "SELECT count(*) FROM onceward.progress WHERE finished_time = $1", stream))
}

// TestStreamTimeWithoutTopic: a receiver of anything else moves it too.
func TestStreamTimeWithoutTopic(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	p := must(consumer.New(t.Context(), consumer.Config{Group: "hooks", DB: e.db}))
	ev := newEvent(t)
	for range 3 {
		_, err := consumer.Do(t.Context(), p, ev, func(context.Context, pgx.Tx) (int, error) { return 1, nil })
		require.NoError(t, err)
	}
	require.Equal(t, 1, count(t, e.db, "SELECT count(*) FROM onceward.progress WHERE topic = '' AND finished_time = $1", ev.Key.Time()))
	require.Empty(t, must(p.Progress(t.Context())).Marks)
}

// TestWebhooks: a receiver of webhooks, whose ids carry no time, or an old one.
func TestWebhooks(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	p := must(consumer.New(t.Context(), consumer.Config{Group: "hooks", DB: e.db, Classes: []consumer.Class{
		webhook.GitHubClass("github.*"), webhook.StripeClass("stripe.*"), webhook.ShopifyClass("shopify.*"),
	}}))
	github, shopify := must(record.TimelessKey("github", uuid.NewString())), must(record.TimelessKey("shopify", uuid.NewString()))
	stripe := must(outbox.ExternalKey("stripe", "evt_1", time.Now().Add(-3*24*time.Hour)))
	keys := map[string]outbox.Key{"github.push": github, "shopify.orders": shopify, "stripe.charge.succeeded": stripe}
	for _, eventType := range slices.Sorted(maps.Keys(keys)) {
		key := keys[eventType]
		for i, want := range []consumer.Outcome{consumer.Processed, consumer.Duplicate, consumer.Duplicate} {
			got, err := consumer.Do(t.Context(), p, consumer.Event{Event: record.Event{Key: key, Type: eventType}}, func(context.Context, pgx.Tx) (int, error) { return i, nil })
			require.NoError(t, err)
			require.Equal(t, want, got.Outcome, eventType)
			require.Zero(t, got.Result)
		}
	}
	old := must(outbox.ExternalKey("stripe", "evt_2", time.Now().Add(-20*24*time.Hour)))
	got, err := consumer.Do(t.Context(), p, consumer.Event{Event: record.Event{Key: old, Type: "stripe.charge.succeeded"}}, func(context.Context, pgx.Tx) (int, error) { return 1, nil })
	require.ErrorIs(t, err, consumer.ErrNotApplied)
	require.Equal(t, consumer.Replay, got.Outcome)
	require.Equal(t, 1, count(t, e.db, "SELECT count(*) FROM onceward.progress WHERE topic = '' AND finished_time > now() - interval '1 minute'"), "arrivals move stream time")
}
