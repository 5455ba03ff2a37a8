//go:build e2e

package consumer_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/migrations"
)

func TestRetentionLifeOfALeaf(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.claim(idAt(k.today.AddDate(0, 0, -8)), "billing", "p", k.today.AddDate(0, 0, -8))
		report := k.maintain(dry)
		require.Equal(k.t, "billing", report.Floors[0].Group)
		require.Equal(k.t, k.today.AddDate(0, 0, -7), report.Floors[0].After.UTC())
		require.Equal(k.t, k.date(-8), k.floor("billing"), "a dry run changes nothing")
		k.became(consumer.LeafDropped, "", func(c *consumer.MaintainConfig) { *c = c.With(nil, nil) })
		require.Equal(k.t, k.date(-7), k.floor("billing"))
		require.False(k.t, k.exists(k.leaf))

		report = k.maintain()
		require.Empty(k.t, report.Made, "it never comes back")
		require.Equal(k.t, consumer.LeafReport{}, find(report, k.leaf))
		require.Equal(k.t, k.today.AddDate(0, 0, -7), report.Horizon.UTC())
		require.Equal(k.t, 64, report.Ahead)
		require.Zero(k.t, report.Overdue)
		require.Positive(k.t, report.Bytes)
		_, err := k.dial(migrations.RoleConsumer).Exec(k.t.Context(), insertClaim, idAt(k.today.AddDate(0, 0, -8)), "billing", "p", time.Now())
		var pg *pgconn.PgError
		require.ErrorAs(k.t, err, &pg)
		require.Equal(k.t, "23514", pg.Code, "and takes no claim")
		require.Equal(k.t, "onceward_owner", k.text("SELECT string_agg(DISTINCT pg_get_userbyid(relowner), ',') FROM pg_class WHERE relname LIKE 'processed_events_2%'"))
	})
}

// Processes keep floors for some seconds, so that a leaf goes a minute after the
// floor that passed it was raised, and not before.
func TestRetentionWaitsUntilTheFloorIsSeen(t *testing.T) {
	k := newKept(t, "15")
	for range 2 {
		report, err := consumer.Maintain(t.Context(), k.conn, consumer.MaintainConfig{})
		require.NoError(t, err)
		l := find(report, k.leaf)
		require.Equal(t, consumer.LeafOpen, l.State)
		require.Contains(t, l.Why, "was raised just now")
	}
	k.exec("UPDATE onceward.dedup_windows SET raised_at = clock_timestamp() - interval '1 minute'")
	report, err := consumer.Maintain(t.Context(), k.conn, consumer.MaintainConfig{})
	require.NoError(t, err)
	require.Equal(t, consumer.LeafDropped, find(report, k.leaf).State)
}

// The floors of a class that is new, and of one whose floor an operator raised, lie far
// above partitions that nobody has needed for that long.
func TestNothingIsOverdueAtOnce(t *testing.T) {
	onBoth(t, func(k *kept) {
		dry := func(c *consumer.MaintainConfig) { c.DryRun = true }
		k.fence(idAt(k.today.AddDate(0, 0, -8)), "PENDING", time.Second)
		k.exec("DELETE FROM onceward.dedup_windows")
		k.exec("INSERT INTO onceward.dedup_windows (consumer_group, class, time_window, floor) VALUES ('billing', '*', '1 hour', $1)", k.today.AddDate(0, 0, -1))
		require.Less(k.t, k.maintain(dry).Overdue, time.Hour)
		k.exec("UPDATE onceward.dedup_windows SET registered_at = now() - interval '3 days', raised_at = now() - interval '1 hour'")
		require.Greater(k.t, k.maintain(dry).Overdue, 71*time.Hour, "so long it has stood in the way")
		k.exec("INSERT INTO onceward.consumer_actions (action, consumer_group, target, reason) VALUES ('windows raise', 'billing', '*: floor', 'r')")
		require.Less(k.t, k.maintain(dry).Overdue, time.Hour)
	})
}

func TestRetentionGates(t *testing.T) {
	onBoth(t, func(k *kept) {
		inside := idAt(k.today.AddDate(0, 0, -8))
		k.window("stock", "*", 24*time.Hour, -30)
		k.became(consumer.LeafOpen, `class "*" of group stock needs it; its floor is `+k.date(-30))
		k.exec("UPDATE onceward.dedup_windows SET retired_at = now() WHERE consumer_group = 'stock'")
		k.progress("new", 0, nil)
		l := k.became(consumer.LeafOpen, "group new makes progress and has registered no window")
		require.True(k.t, l.Wrong)
		k.exec("DELETE FROM onceward.progress WHERE consumer_group = 'new'")

		k.fence(inside, "PENDING", time.Second)
		k.letter(inside, 1, "handler", "open")
		k.became(consumer.LeafWaiting, "1 of its events are open, with effects that nothing has ended: see `outboxctl fences list --all`")
		require.True(k.t, k.exists(k.leaf))
		k.exec("UPDATE onceward.fences SET status = 'COMPLETE', expires_at = now()")
		k.fence(idAt(k.today), "PENDING", time.Second)
		k.letter(idAt(k.today), 2, "handler", "open")
		k.became(consumer.LeafClosed, "would be dropped", dry)
		k.became(consumer.LeafDropped, "") // what is not settled elsewhere does not matter
	})
}

// Each leaf is judged by itself: one that has to stay keeps no other one.
func TestRetentionDropsAroundALeafThatStays(t *testing.T) {
	k := newKept(t, "15")
	second := k.day(-9)
	k.fence(idAt(k.today.AddDate(0, 0, -9)), "PENDING", 0)
	report := k.maintain()
	require.Equal(t, consumer.LeafWaiting, find(report, second).State)
	require.Equal(t, consumer.LeafDropped, find(report, k.leaf).State)
	require.Greater(t, report.Overdue+time.Hour, 24*time.Hour, "it is what is overdue")
	k.window("new", "*", 20*24*time.Hour, -7)
	report = k.maintain(ahead(72))
	require.Len(t, report.Made, 8)
	require.NotContains(t, report.Made, k.leaf, "the hole below the horizon is not filled, however long a window is")
	k.exec("UPDATE onceward.fences SET status = 'COMPLETE', expires_at = now()")
	require.Equal(t, consumer.LeafDropped, find(k.maintain(), second).State)
}

func TestRetentionWithoutGroupsKeepsAll(t *testing.T) {
	k := newKept(t, "15")
	k.exec("DELETE FROM onceward.dedup_windows")
	k.exec("DELETE FROM onceward.progress")
	k.became(consumer.LeafOpen, "no group has a window that is in use")
	k.window("billing", "*", week, 0)
	k.exec("UPDATE onceward.dedup_windows SET retired_at = now()")
	k.became(consumer.LeafOpen, "no group has a window that is in use")
}

// A floor follows what the group finished, and stands still with it.
func TestRetentionFollowsStreamTime(t *testing.T) {
	k := newKept(t, "15")
	k.progress("billing", 1, nil)
	report := k.maintain()
	require.Equal(t, k.date(-8), k.floor("billing"))
	require.Contains(t, report.Floors[0].Why, "the group has finished nothing of partition 1 of topic orders")
	require.False(t, report.Floors[0].Wrong, "nothing grows")
	k.exec("DELETE FROM onceward.progress")
	require.Contains(t, k.maintain().Floors[0].Why, "the group has saved no progress yet")

	k.progress("billing", 0, k.today)
	k.progress("billing", 1, k.today.AddDate(0, 0, -30))
	k.exec("UPDATE onceward.dedup_windows SET floor = $1, raised_at = now() - interval '3 days'", k.today.AddDate(0, 0, -37))
	k.claim(idAt(k.today), "billing", "p", time.Now())
	report = k.maintain()
	require.True(t, report.Growing)
	require.True(t, report.Floors[0].Wrong)
	require.Equal(t, 30*24*time.Hour, report.Floors[0].Behind)
	require.Contains(t, report.Floors[0].Why, "partition 1 of topic orders up to events of "+k.date(-30))
	require.Contains(t, report.Floors[0].Why, "the table grows meanwhile: start the group")
	k.became(consumer.LeafOpen, "needs it; its floor is "+k.date(-37))

	k.progress("billing", 1, k.today)
	for n := -35; n < -7; n += 2 {
		k.maintain()
		require.Equal(t, k.date(n), k.floor("billing"), "two days a run")
	}
	k.became(consumer.LeafDropped, "")
}

// The database's clock jumps one month ahead, for many runs, and back. Neither
// partitions nor floors follow it: the group has finished nothing of the future.
func TestRetentionWhenTheClockJumps(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.maintain()
		before := k.floor("billing")
		id := idAt(k.today.AddDate(0, 0, -7))
		k.claim(id, "billing", "p", time.Now())
		month := func(c *consumer.MaintainConfig) {
			*c = c.With(func(now time.Time) time.Time { return now.AddDate(0, 1, 0) }, nil)
		}
		for range 5 {
			k.maintain(month)
		}
		require.Equal(k.t, before, k.floor("billing"))
		require.Equal(k.t, "1", k.text("SELECT count(*)::text FROM onceward.processed_events WHERE event_id = $1", id))

		// Even when the group finishes events of the future, the floor follows by
		// two days a run.
		k.progress("billing", 0, k.today.AddDate(0, 1, 0))
		k.maintain(month)
		require.Equal(k.t, k.date(-5), k.floor("billing"))
		report := k.maintain()
		require.Equal(k.t, k.date(-5), k.floor("billing"), "the clock is back: it is not raised, and not lowered")
		require.Greater(k.t, report.Ahead, 64)
		for n := -5; n <= 14; n++ {
			k.claim(idAt(k.today.AddDate(0, 0, n)), "billing", "p", time.Now())
		}
	})
}

func TestRetentionHasOneMaintainer(t *testing.T) {
	onBoth(t, func(k *kept) {
		other := k.dial(migrations.RoleConsumerMaintainer)
		_, err := other.Exec(k.t.Context(), "SELECT pg_advisory_lock($1)", claims.Lock)
		require.NoError(k.t, err)
		_, err = k.run()
		require.ErrorIs(k.t, err, consumer.ErrMaintained)
		k.became(consumer.LeafOpen, "", dry) // looking is always possible
		_, err = other.Exec(k.t.Context(), "SELECT pg_advisory_unlock($1)", claims.Lock)
		require.NoError(k.t, err)

		// One is in the middle of a run when the other comes.
		first, second := k.conn, other
		_, err = k.run(func(c *consumer.MaintainConfig) {
			*c = c.With(nil, func(string) {
				k.conn = second
				_, err := k.run()
				require.ErrorIs(k.t, err, consumer.ErrMaintained)
				k.conn = first
			})
		})
		require.NoError(k.t, err)
		require.False(k.t, k.exists(k.leaf))
		k.conn = second
		k.maintain()
		var timeout string
		require.NoError(k.t, second.QueryRow(k.t.Context(), "SHOW lock_timeout").Scan(&timeout))
		require.Equal(k.t, "0", timeout, "the session is given back as it was")
	})
}

func TestRetentionByRoles(t *testing.T) {
	k := newKept(t, "15")
	k.conn = k.dial(migrations.RoleOperator)
	require.Contains(t, k.became(consumer.LeafOpen, "", dry).Name, "processed_events_")
	_, err := k.run()
	var pg *pgconn.PgError
	require.ErrorAs(t, err, &pg, "an operator is no maintainer")
	require.Equal(t, "42501", pg.Code)
	k.conn = k.dial(migrations.RoleConsumer)
	_, err = k.run()
	require.ErrorAs(t, err, &pg, "nor is a consumer")
	require.Equal(t, "42501", pg.Code)
	require.True(t, k.exists(k.leaf))
}

// Beside a DEFAULT partition every other one is looked at, and an error of one of them
// is told as well.
func TestRetentionBesideADefaultPartition(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.exec("CREATE TABLE onceward.processed_events_rest PARTITION OF onceward.processed_events DEFAULT")
		leaf := partition.OfDay("processed_events", k.today.AddDate(0, 0, -9)).Name
		k.exec("CREATE TABLE onceward." + leaf + " (LIKE onceward.processed_events)") // of the superuser
		k.exec("INSERT INTO onceward.dedup_horizon (dropped_before) VALUES ($1)", k.today.AddDate(0, 0, -8))
		young := partition.OfDay("processed_events", k.today.AddDate(0, 0, -3)).Name
		k.exec("ALTER TABLE onceward.processed_events DETACH PARTITION onceward." + young)
		report, err := k.run()
		require.ErrorIs(k.t, err, consumer.ErrDefaultPartition)
		require.ErrorContains(k.t, err, "partition "+leaf+": drop: ")
		require.Equal(k.t, 1, strings.Count(err.Error(), "DEFAULT"), err)
		require.Equal(k.t, "beside the DEFAULT partition onceward.processed_events_rest none is made", report.Blocked)
		require.Equal(k.t, k.date(-7), k.floor("billing"), "floors go on")
		require.Equal(k.t, consumer.LeafClosed, find(report, k.leaf).State)
		require.Contains(k.t, find(report, k.leaf).Why, "stays while there is the DEFAULT partition onceward.processed_events_rest")
		require.Equal(k.t, k.date(-8), k.text("SELECT to_char(dropped_before AT TIME ZONE 'UTC', 'YYYY-MM-DD') FROM onceward.dedup_horizon"))
		require.Contains(k.t, find(report, young).Why, "somebody detached it, although its claims are needed: `outboxctl audit` prints how to bring it back")
		require.Positive(k.t, report.Bytes)
		require.True(k.t, k.exists(k.leaf))
	})
}

func TestRetentionWhenPremakeStalls(t *testing.T) {
	onBoth(t, func(k *kept) {
		holder := k.holding(migrations.RoleConsumerMaintainer, "LOCK TABLE ONLY onceward.processed_events IN SHARE UPDATE EXCLUSIVE MODE")
		report := k.maintain(ahead(70))
		require.Empty(k.t, report.Made)
		require.Equal(k.t, "another session held a lock on onceward.processed_events for 200ms; the next run tries again", report.Blocked)
		require.Equal(k.t, 64, report.Ahead)
		require.Equal(k.t, k.date(-7), k.floor("billing"), "the rest of the run goes on")
		k.claim(idAt(k.today), "billing", "p", time.Now())
		k.end(holder)
		report = k.maintain(ahead(70))
		require.Len(k.t, report.Made, 6)
		require.Equal(k.t, 70, report.Ahead)
	})
}

// A group that lags needs days of before its window: a hole there is made, as audit
// says, and none below what claims were dropped of.
func TestRetentionMakesTheHolesOfAGroupThatLags(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.day(-20)
		k.progress("billing", 0, k.today.AddDate(0, 0, -13))
		k.exec("UPDATE onceward.dedup_windows SET floor = $1", k.today.AddDate(0, 0, -20))
		hole := "hole  1 " + k.date(-19) + "T00:00:00Z to " + k.date(-8) + "T00:00:00Z"
		require.Equal(k.t, []string{hole}, k.audit())
		require.Len(k.t, k.maintain().Made, 11)
		require.Empty(k.t, k.audit())

		k.exec("DROP TABLE onceward." + partition.OfDay("processed_events", k.today.AddDate(0, 0, -15)).Name)
		k.exec("INSERT INTO onceward.dedup_horizon (dropped_before) VALUES ($1)", k.today.AddDate(0, 0, -9))
		require.Empty(k.t, k.maintain().Made)
		report, err := consumer.Audit(k.t.Context(), k.conn, consumer.AuditConfig{})
		require.NoError(k.t, err)
		require.Equal(k.t, "hole", report.Findings[0].Check)
		require.Contains(k.t, report.Findings[0].Do, "`outboxctl windows raise GROUP CLASS --reason \"…\"`")
	})
}

func TestRetentionMakesRoomForLongWindows(t *testing.T) {
	k := newKept(t, "15")
	k.window("billing", "Order*", 20*24*time.Hour, -8)
	report := k.maintain()
	require.Equal(t, 64, report.Ahead)
	require.NotContains(t, report.Made, partition.OfDay("processed_events", k.today.AddDate(0, 0, -9)).Name, "nothing below the oldest")
	require.Equal(t, consumer.LeafOpen, find(report, k.leaf).State)
	require.Empty(t, find(report, k.leaf).Why, "nobody expects it to go")
}
