//go:build e2e

package retention_test

import (
	"context"
	"regexp"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/internal/claimstest"
	"github.com/onceward/onceward/consumer/retention"
	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// group starts a program of a group, whose handler counts its calls.
func (k *kept) group(name string, classes ...consumer.Class) (*consumer.Router, *int) {
	k.T.Helper()
	pool, err := pgxpool.NewWithConfig(k.T.Context(), k.As(migrations.RoleConsumer))
	require.NoError(k.T, err)
	k.T.Cleanup(pool.Close)
	p, err := consumer.New(k.T.Context(), consumer.Config{Group: name, DB: pool, Classes: classes})
	require.NoError(k.T, err)
	r, applied := consumer.NewRouter(p), new(int)
	r.Tx("Paid", func(context.Context, pgx.Tx, consumer.Event) error { *applied++; return nil })
	return r, applied
}

func (k *kept) adopt(change func(*retention.AdoptConfig)) (retention.AdoptReport, error) {
	k.T.Helper()
	cfg := retention.AdoptConfig{Group: "reports", From: k.Today.AddDate(0, 0, -40).Add(13 * time.Hour), Reason: "new dashboard"}
	change(&cfg)
	return retention.Adopt(k.T.Context(), k.Conn, cfg)
}

func same(*retention.AdoptConfig) {}

func old(t *testing.T, k *kept, offset int64) consumer.Event {
	t.Helper()
	return consumer.Event{
		Event: record.Event{
			Key: keyAt(t, k.Today.AddDate(0, 0, -30)), Type: "Paid", AggregateType: "order", AggregateID: "o-1", Payload: []byte(`{"amount":10}`),
		},
		Source: consumer.Source{Topic: "orders", Offset: offset},
	}
}

func keyAt(t *testing.T, at time.Time) outbox.Key {
	t.Helper()
	key, err := outbox.KeyFrom("shop", claimstest.IDAt(at), at, outbox.NoSkewLimit)
	require.NoError(t, err)
	return key
}

// deliver handles the event, with the outcome that is wanted.
func deliver(t *testing.T, r *consumer.Router, ev consumer.Event, want consumer.Outcome) {
	t.Helper()
	got, err := r.Handle(t.Context(), ev)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// A new group claims the events of an old topic as its own; the groups that are
// there, whose claims of that time were dropped, go on rejecting replays.
func TestANewGroupIsAdopted(t *testing.T) {
	onBoth(t, func(k *kept) {
		t := k.T
		k.Exec("INSERT INTO onceward.dedup_horizon (dropped_before) VALUES ($1)", k.Today.AddDate(0, 0, -8))
		k.Day(-20) // kept by a letter; the days around it were dropped
		plan, err := k.adopt(func(c *retention.AdoptConfig) { c.DryRun = true })
		require.NoError(t, err)
		require.Len(t, plan.Made, 31)
		require.Equal(t, "0", k.Text("SELECT count(*)::text FROM onceward.dedup_windows WHERE consumer_group = 'reports'"))

		report, err := k.adopt(same)
		require.NoError(t, err)
		require.Equal(t, plan.Made, report.Made)
		require.Equal(t, []string{"*"}, report.Classes)
		require.True(t, report.Floors["*"].Equal(k.Today.AddDate(0, 0, -40)), "the start of the day")
		require.Equal(t, "windows adopt reports * new dashboard", k.Text("SELECT concat_ws(' ', action, consumer_group, target, reason) FROM onceward.consumer_actions"))

		reports, applied := k.group("reports")
		ev := old(t, k, 0)
		for _, want := range []consumer.Outcome{consumer.Processed, consumer.Duplicate} {
			deliver(t, reports, ev, want)
		}
		between := old(t, k, 1)
		between.Key = keyAt(t, k.Today.AddDate(0, 0, -15))
		deliver(t, reports, between, consumer.Processed)
		require.Equal(t, 2, *applied)
		require.Equal(t, "1", k.Text("SELECT count(*)::text FROM onceward.processed_events WHERE event_id = $1", ev.Key.UUID()), "under its own id: it is not late")

		billing, applied := k.group("billing")
		deliver(t, billing, old(t, k, 9), consumer.DeadLettered)
		require.Zero(t, *applied)
		require.Equal(t, "replay", k.Text("SELECT reason FROM onceward.consumer_dead_letters WHERE consumer_group = 'billing'"))
	})
}

// Days that were opened again hold none of the claims that were dropped: no
// other class may get a floor there.
func TestNobodyElseUsesTheDaysOfAnAdoption(t *testing.T) {
	onBoth(t, func(k *kept) {
		t := k.T
		k.Exec("INSERT INTO onceward.dedup_horizon (dropped_before) VALUES ($1)", k.Today.AddDate(0, 0, -8))
		k.Window("mail", "*", 60*24*time.Hour, -60)
		k.Exec("UPDATE onceward.dedup_windows SET retired_at = now() WHERE consumer_group = 'mail'")
		_, err := k.adopt(same)
		require.NoError(t, err)
		k.group("billing", consumer.Class{Pattern: "Paid", Window: 60 * 24 * time.Hour}, consumer.Class{Pattern: "*", Window: week})
		require.Equal(t, k.Date(-8), k.Floor("billing"), "a class that is added later")
		k.group("mail", consumer.Class{Pattern: "*", Window: 60 * 24 * time.Hour})
		require.Equal(t, k.Date(-8), k.Floor("mail"), "a group that comes back")
		k.group("third", consumer.Class{Pattern: "*", Window: 60 * 24 * time.Hour})
		require.Equal(t, k.Date(-8), k.Floor("third"), "a new group that was not adopted")
		k.group("reports")
		require.Equal(t, k.Date(-40), k.Floor("reports"), "that of the adopted group stays")
	})
}

func TestAdoptRefuses(t *testing.T) {
	onBoth(t, func(k *kept) {
		t := k.T
		refused := func(why error, text string, change func(*retention.AdoptConfig)) {
			t.Helper()
			_, err := k.adopt(change)
			if why != nil {
				require.ErrorIs(t, err, why)
			}
			require.ErrorContains(t, err, text)
		}
		id := claimstest.IDAt(k.Today)
		for name, trace := range map[string]string{
			"marks":  "INSERT INTO onceward.progress (consumer_group, topic, kafka_partition, low_offset, high_offset) VALUES ('reports', 'orders', 0, 0, -1)",
			"claims": "INSERT INTO onceward.processed_events (event_id, consumer_group, event_type, namespace, fingerprint, outcome) VALUES ('" + id.String() + `', 'reports', 'Paid', 'shop', '\x00', 'p')`,
			"fences": "INSERT INTO onceward.fences (event_id, consumer_group, name, owner, lease_until, request_fingerprint) VALUES ('" + id.String() + `', 'reports', 'charge', 'me', now(), '\x00')`,
		} {
			k.Exec(trace)
			refused(retention.ErrNotNew, name, same)
			k.Exec("DELETE FROM onceward.progress WHERE consumer_group = 'reports'")
			k.Exec("DELETE FROM onceward.processed_events")
			k.Exec("DELETE FROM onceward.fences")
		}
		refused(nil, "want 1 to 255 bytes", func(c *retention.AdoptConfig) { c.Group = "" })
		refused(nil, "Reason is empty", func(c *retention.AdoptConfig) { c.Reason = "" })
		refused(nil, "want a time of the last 366 days", func(c *retention.AdoptConfig) { c.From = k.Today.AddDate(0, 0, 2) })
		refused(nil, "want a time of the last 366 days", func(c *retention.AdoptConfig) { c.From = k.Today.AddDate(0, 0, -400) })
		refused(nil, "Window 1s", func(c *retention.AdoptConfig) { c.Classes = []consumer.Class{{Pattern: "*", Window: time.Second}} })

		other := k.Dial(migrations.RoleConsumerMaintainer)
		_, err := other.Exec(t.Context(), "SELECT pg_advisory_lock($1)", claims.Lock)
		require.NoError(t, err)
		refused(retention.ErrMaintained, "another session", same)
		_, err = other.Exec(t.Context(), "SELECT pg_advisory_unlock($1)", claims.Lock)
		require.NoError(t, err)

		k.Exec("ALTER TABLE onceward.processed_events DETACH PARTITION onceward." + k.Leaf)
		_, err = k.adopt(same)
		require.ErrorContains(t, err, "partition "+k.Leaf+": somebody detached it, and not retention; who did so is not known: attach it again (as a member of the role onceward_owner: ")
		_, err = k.Conn.Exec(t.Context(), regexp.MustCompile(`ALTER TABLE [^)]*\) TO \('[^)]*\)`).FindString(err.Error()))
		require.NoError(t, err)
		_, err = k.adopt(func(c *retention.AdoptConfig) { c.DryRun = true })
		require.NoError(t, err)
		k.Exec("ALTER TABLE onceward.processed_events DETACH PARTITION onceward." + k.Leaf)
		k.Exec("INSERT INTO onceward.dedup_horizon (dropped_before) VALUES ($1)", k.Today.AddDate(0, 0, -7))
		refused(nil, "partition "+k.Leaf+" is being removed; run `outboxctl partitions maintain --side consumer`", same)
		k.Exec("DROP TABLE onceward." + k.Leaf)
		_, err = retention.Adopt(t.Context(), k.Dial(migrations.RoleOperator), retention.AdoptConfig{Group: "reports", From: k.Today, Reason: "r"})
		require.ErrorContains(t, err, "permission denied")
		require.Equal(t, "0", k.Text("SELECT count(*)::text FROM onceward.dedup_windows WHERE consumer_group = 'reports'"), "nothing was left behind")
	})
}

// A year is opened in one transaction, with the server's default settings.
func TestAYearIsAdopted(t *testing.T) {
	onBoth(t, func(k *kept) {
		t := k.T
		began := time.Now()
		report, err := k.adopt(func(c *retention.AdoptConfig) { c.From = time.Now().AddDate(0, 0, -365) })
		require.NoError(t, err)
		require.Len(t, report.Made, 357)
		t.Logf("%d partitions in %s", len(report.Made), time.Since(began))
	})
}

// An operator adopts a group that its program has registered before it read
// anything: the floor of each class is lowered, its window is kept.
func TestARegisteredGroupIsAdopted(t *testing.T) {
	onBoth(t, func(k *kept) {
		t := k.T
		k.group("reports", consumer.Class{Pattern: "Paid", Window: 2 * 24 * time.Hour}, consumer.Class{Pattern: "*", Window: 24 * time.Hour, Keyed: consumer.ByArrival})
		report, err := k.adopt(func(c *retention.AdoptConfig) { c.From = k.Today.AddDate(0, 0, -9) })
		require.NoError(t, err)
		require.ElementsMatch(t, []string{"Paid", "*"}, report.Classes)
		require.Equal(t, k.Date(-9), k.Floor("reports"))
		require.Equal(t, "24:00:00 arrival 48:00:00 event-time", k.Text("SELECT string_agg(time_window || ' ' || keyed, ' ' ORDER BY time_window) FROM onceward.dedup_windows WHERE consumer_group = 'reports'"))
		_, err = k.adopt(func(c *retention.AdoptConfig) { c.From = k.Today.AddDate(0, 0, -2) })
		require.NoError(t, err)
		require.Equal(t, k.Date(-9), k.Floor("reports"), "never raised by an adoption")
	})
}
