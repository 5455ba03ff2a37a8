//go:build e2e

package retention_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/audit"
	"github.com/onceward/onceward/consumer/internal/claimstest"
	"github.com/onceward/onceward/consumer/retention"
	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/migrations"
)

func TestRetentionLifeOfALeaf(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.Claim(claimstest.IDAt(k.Today.AddDate(0, 0, -8)), "billing", "p", k.Today.AddDate(0, 0, -8))
		report := k.Maintain(dry)
		require.Equal(k.T, "billing", report.Floors[0].Group)
		require.Equal(k.T, k.Today.AddDate(0, 0, -7), report.Floors[0].After.UTC())
		require.Equal(k.T, k.Date(-8), k.Floor("billing"), "a dry run changes nothing")
		k.Became(retention.LeafDropped, "", func(c *retention.Config) { *c = c.With(nil, nil) })
		require.Equal(k.T, k.Date(-7), k.Floor("billing"))
		require.False(k.T, k.Exists(k.Leaf))

		report = k.Maintain()
		require.Empty(k.T, report.Made, "it never comes back")
		require.Equal(k.T, retention.LeafReport{}, claimstest.Find(report, k.Leaf))
		require.Equal(k.T, k.Today.AddDate(0, 0, -7), report.Horizon.UTC())
		require.Equal(k.T, 64, report.Ahead)
		require.Zero(k.T, report.Overdue)
		require.Positive(k.T, report.Bytes)
		_, err := k.Dial(migrations.RoleConsumer).Exec(k.T.Context(), claimstest.InsertClaim, claimstest.IDAt(k.Today.AddDate(0, 0, -8)), "billing", "p", time.Now())
		var pg *pgconn.PgError
		require.ErrorAs(k.T, err, &pg)
		require.Equal(k.T, "23514", pg.Code, "and takes no claim")
		require.Equal(k.T, "onceward_owner", k.Text("SELECT string_agg(DISTINCT pg_get_userbyid(relowner), ',') FROM pg_class WHERE relname LIKE 'processed_events_2%'"))
	})
}

// Processes keep floors for some seconds, so that a leaf goes a minute after the
// floor that passed it was raised, and not before.
func TestRetentionWaitsUntilTheFloorIsSeen(t *testing.T) {
	k := newKept(t, "15")
	for range 2 {
		report, err := retention.Maintain(t.Context(), k.Conn, retention.Config{})
		require.NoError(t, err)
		l := claimstest.Find(report, k.Leaf)
		require.Equal(t, retention.LeafOpen, l.State)
		require.Contains(t, l.Why, "was raised just now")
	}
	k.Exec("UPDATE onceward.dedup_windows SET raised_at = clock_timestamp() - interval '1 minute'")
	report, err := retention.Maintain(t.Context(), k.Conn, retention.Config{})
	require.NoError(t, err)
	require.Equal(t, retention.LeafDropped, claimstest.Find(report, k.Leaf).State)
}

// The floors of a class that is new, and of one whose floor an operator raised, lie far
// above partitions that nobody has needed for that long.
func TestNothingIsOverdueAtOnce(t *testing.T) {
	onBoth(t, func(k *kept) {
		dry := func(c *retention.Config) { c.DryRun = true }
		k.Fence(claimstest.IDAt(k.Today.AddDate(0, 0, -8)), "PENDING", time.Second)
		k.Exec("DELETE FROM onceward.dedup_windows")
		k.Exec("INSERT INTO onceward.dedup_windows (consumer_group, class, time_window, floor) VALUES ('billing', '*', '1 hour', $1)", k.Today.AddDate(0, 0, -1))
		require.Less(k.T, k.Maintain(dry).Overdue, time.Hour)
		k.Exec("UPDATE onceward.dedup_windows SET registered_at = now() - interval '3 days', raised_at = now() - interval '1 hour'")
		require.Greater(k.T, k.Maintain(dry).Overdue, 71*time.Hour, "so long it has stood in the way")
		k.Exec("INSERT INTO onceward.consumer_actions (action, consumer_group, target, reason) VALUES ('windows raise', 'billing', '*: floor', 'r')")
		require.Less(k.T, k.Maintain(dry).Overdue, time.Hour)
	})
}

func TestRetentionGates(t *testing.T) {
	onBoth(t, func(k *kept) {
		inside := claimstest.IDAt(k.Today.AddDate(0, 0, -8))
		k.Window("stock", "*", 24*time.Hour, -30)
		k.Became(retention.LeafOpen, `class "*" of group stock needs it; its floor is `+k.Date(-30))
		k.Exec("UPDATE onceward.dedup_windows SET retired_at = now() WHERE consumer_group = 'stock'")
		k.Progress("new", 0, nil)
		l := k.Became(retention.LeafOpen, "group new makes progress and has registered no window")
		require.True(k.T, l.Wrong)
		k.Exec("DELETE FROM onceward.progress WHERE consumer_group = 'new'")

		k.Fence(inside, "PENDING", time.Second)
		k.Letter(inside, 1, "handler", "open")
		k.Became(retention.LeafWaiting, "1 of its events is open, with effects that nothing has ended: see `outboxctl fences list --all`")
		require.True(k.T, k.Exists(k.Leaf))
		k.Exec("UPDATE onceward.fences SET status = 'COMPLETE', expires_at = now()")
		k.Fence(claimstest.IDAt(k.Today), "PENDING", time.Second)
		k.Letter(claimstest.IDAt(k.Today), 2, "handler", "open")
		k.Became(retention.LeafClosed, "would be dropped", dry)
		k.Became(retention.LeafDropped, "") // what is not settled elsewhere does not matter
	})
}

// Each leaf is judged by itself: one that has to stay keeps no other one.
func TestRetentionDropsAroundALeafThatStays(t *testing.T) {
	k := newKept(t, "15")
	second := k.Day(-9)
	k.Fence(claimstest.IDAt(k.Today.AddDate(0, 0, -9)), "PENDING", 0)
	report := k.Maintain()
	require.Equal(t, retention.LeafWaiting, claimstest.Find(report, second).State)
	require.Equal(t, retention.LeafDropped, claimstest.Find(report, k.Leaf).State)
	require.Greater(t, report.Overdue+time.Hour, 24*time.Hour, "it is what is overdue")
	k.Window("new", "*", 20*24*time.Hour, -7)
	report = k.Maintain(ahead(72))
	require.Len(t, report.Made, 8)
	require.NotContains(t, report.Made, k.Leaf, "the hole below the horizon is not filled, however long a window is")
	k.Exec("UPDATE onceward.fences SET status = 'COMPLETE', expires_at = now()")
	require.Equal(t, retention.LeafDropped, claimstest.Find(k.Maintain(), second).State)
}

func TestRetentionWithoutGroupsKeepsAll(t *testing.T) {
	k := newKept(t, "15")
	k.Exec("DELETE FROM onceward.dedup_windows")
	k.Exec("DELETE FROM onceward.progress")
	k.Became(retention.LeafOpen, "no group has a window that is in use")
	k.Window("billing", "*", week, 0)
	k.Exec("UPDATE onceward.dedup_windows SET retired_at = now()")
	k.Became(retention.LeafOpen, "no group has a window that is in use")
}

// A floor follows what the group finished, and stands still with it.
func TestRetentionFollowsStreamTime(t *testing.T) {
	k := newKept(t, "15")
	k.Progress("billing", 1, nil)
	report := k.Maintain()
	require.Equal(t, k.Date(-8), k.Floor("billing"))
	require.Contains(t, report.Floors[0].Why, "the group has finished nothing of partition 1 of topic orders")
	require.False(t, report.Floors[0].Wrong, "nothing grows")
	k.Exec("DELETE FROM onceward.progress")
	require.Contains(t, k.Maintain().Floors[0].Why, "the group has saved no progress yet")

	k.Progress("billing", 0, k.Today)
	k.Progress("billing", 1, k.Today.AddDate(0, 0, -30))
	k.Exec("UPDATE onceward.dedup_windows SET floor = $1, raised_at = now() - interval '3 days'", k.Today.AddDate(0, 0, -37))
	k.Claim(claimstest.IDAt(k.Today), "billing", "p", time.Now())
	report = k.Maintain()
	require.True(t, report.Growing)
	require.True(t, report.Floors[0].Wrong)
	require.Equal(t, 30*24*time.Hour, report.Floors[0].Behind)
	require.Contains(t, report.Floors[0].Why, "partition 1 of topic orders up to events of "+k.Date(-30))
	require.Contains(t, report.Floors[0].Why, "the table grows meanwhile: start the group")
	k.Became(retention.LeafOpen, "needs it; its floor is "+k.Date(-37))

	k.Progress("billing", 1, k.Today)
	for n := -35; n < -7; n += 2 {
		k.Maintain()
		require.Equal(t, k.Date(n), k.Floor("billing"), "two days a run")
	}
	k.Became(retention.LeafDropped, "")
}

// The database's clock jumps one month ahead, for many runs, and back. Neither
// partitions nor floors follow it: the group has finished nothing of the future.
func TestRetentionWhenTheClockJumps(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.Maintain()
		before := k.Floor("billing")
		id := claimstest.IDAt(k.Today.AddDate(0, 0, -7))
		k.Claim(id, "billing", "p", time.Now())
		month := func(c *retention.Config) {
			*c = c.With(func(now time.Time) time.Time { return now.AddDate(0, 1, 0) }, nil)
		}
		for range 5 {
			k.Maintain(month)
		}
		require.Equal(k.T, before, k.Floor("billing"))
		require.Equal(k.T, "1", k.Text("SELECT count(*)::text FROM onceward.processed_events WHERE event_id = $1", id))

		// Even when the group finishes events of the future, the floor follows by
		// two days a run.
		k.Progress("billing", 0, k.Today.AddDate(0, 1, 0))
		k.Maintain(month)
		require.Equal(k.T, k.Date(-5), k.Floor("billing"))
		report := k.Maintain()
		require.Equal(k.T, k.Date(-5), k.Floor("billing"), "the clock is back: it is not raised, and not lowered")
		require.Greater(k.T, report.Ahead, 64)
		for n := -5; n <= 14; n++ {
			k.Claim(claimstest.IDAt(k.Today.AddDate(0, 0, n)), "billing", "p", time.Now())
		}
	})
}

func TestRetentionHasOneMaintainer(t *testing.T) {
	onBoth(t, func(k *kept) {
		other := k.Dial(migrations.RoleConsumerMaintainer)
		_, err := other.Exec(k.T.Context(), "SELECT pg_advisory_lock($1)", claims.Lock)
		require.NoError(k.T, err)
		_, err = k.Run()
		require.ErrorIs(k.T, err, retention.ErrMaintained)
		k.Became(retention.LeafOpen, "", dry) // looking is always possible
		_, err = other.Exec(k.T.Context(), "SELECT pg_advisory_unlock($1)", claims.Lock)
		require.NoError(k.T, err)

		// One is in the middle of a run when the other comes.
		first, second := k.Conn, other
		_, err = k.Run(func(c *retention.Config) {
			*c = c.With(nil, func(string) {
				k.Conn = second
				_, err := k.Run()
				require.ErrorIs(k.T, err, retention.ErrMaintained)
				k.Conn = first
			})
		})
		require.NoError(k.T, err)
		require.False(k.T, k.Exists(k.Leaf))
		k.Conn = second
		k.Maintain()
		var timeout string
		require.NoError(k.T, second.QueryRow(k.T.Context(), "SHOW lock_timeout").Scan(&timeout))
		require.Equal(k.T, "0", timeout, "the session is given back as it was")
	})
}

func TestRetentionByRoles(t *testing.T) {
	k := newKept(t, "15")
	k.Conn = k.Dial(migrations.RoleOperator)
	require.Contains(t, k.Became(retention.LeafOpen, "", dry).Name, "processed_events_")
	_, err := k.Run()
	var pg *pgconn.PgError
	require.ErrorAs(t, err, &pg, "an operator is no maintainer")
	require.Equal(t, "42501", pg.Code)
	k.Conn = k.Dial(migrations.RoleConsumer)
	_, err = k.Run()
	require.ErrorAs(t, err, &pg, "nor is a consumer")
	require.Equal(t, "42501", pg.Code)
	require.True(t, k.Exists(k.Leaf))
}

// Beside a DEFAULT partition every other one is looked at, and an error of one of them
// is told as well.
func TestRetentionBesideADefaultPartition(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.Exec("CREATE TABLE onceward.processed_events_rest PARTITION OF onceward.processed_events DEFAULT")
		leaf := partition.OfDay("processed_events", k.Today.AddDate(0, 0, -9)).Name
		k.Exec("CREATE TABLE onceward." + leaf + " (LIKE onceward.processed_events)") // of the superuser
		k.Exec("INSERT INTO onceward.dedup_horizon (dropped_before) VALUES ($1)", k.Today.AddDate(0, 0, -8))
		young := partition.OfDay("processed_events", k.Today.AddDate(0, 0, -3)).Name
		k.Exec("ALTER TABLE onceward.processed_events DETACH PARTITION onceward." + young)
		report, err := k.Run()
		require.ErrorIs(k.T, err, consumer.ErrDefaultPartition)
		require.ErrorContains(k.T, err, "partition "+leaf+": drop: ")
		require.Equal(k.T, 1, strings.Count(err.Error(), "DEFAULT"), err)
		require.Equal(k.T, "beside the DEFAULT partition onceward.processed_events_rest none is made", report.Blocked)
		require.Equal(k.T, k.Date(-7), k.Floor("billing"), "floors go on")
		require.Equal(k.T, retention.LeafClosed, claimstest.Find(report, k.Leaf).State)
		require.Contains(k.T, claimstest.Find(report, k.Leaf).Why, "stays while there is the DEFAULT partition onceward.processed_events_rest")
		require.Equal(k.T, k.Date(-8), k.Text("SELECT to_char(dropped_before AT TIME ZONE 'UTC', 'YYYY-MM-DD') FROM onceward.dedup_horizon"))
		require.Contains(k.T, claimstest.Find(report, young).Why, "somebody detached it, although its claims are needed: `outboxctl audit` prints how to bring it back")
		require.Positive(k.T, report.Bytes)
		require.True(k.T, k.Exists(k.Leaf))
	})
}

func TestRetentionWhenPremakeStalls(t *testing.T) {
	onBoth(t, func(k *kept) {
		holder := k.holding(migrations.RoleConsumerMaintainer, "LOCK TABLE ONLY onceward.processed_events IN SHARE UPDATE EXCLUSIVE MODE")
		report := k.Maintain(ahead(70))
		require.Empty(k.T, report.Made)
		require.Equal(k.T, "another session held a lock on onceward.processed_events for 200ms; the next run tries again", report.Blocked)
		require.Equal(k.T, 64, report.Ahead)
		require.Equal(k.T, k.Date(-7), k.Floor("billing"), "the rest of the run goes on")
		k.Claim(claimstest.IDAt(k.Today), "billing", "p", time.Now())
		k.end(holder)
		report = k.Maintain(ahead(70))
		require.Len(k.T, report.Made, 6)
		require.Equal(k.T, 70, report.Ahead)
	})
}

// A group that lags needs days of before its window: a hole there is made, as audit
// says, and none below what claims were dropped of.
func TestRetentionMakesTheHolesOfAGroupThatLags(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.Day(-20)
		k.Progress("billing", 0, k.Today.AddDate(0, 0, -13))
		k.Exec("UPDATE onceward.dedup_windows SET floor = $1", k.Today.AddDate(0, 0, -20))
		hole := "hole  1 " + k.Date(-19) + "T00:00:00Z to " + k.Date(-8) + "T00:00:00Z"
		require.Equal(k.T, []string{hole}, k.Audit())
		require.Len(k.T, k.Maintain().Made, 11)
		require.Empty(k.T, k.Audit())

		k.Exec("DROP TABLE onceward." + partition.OfDay("processed_events", k.Today.AddDate(0, 0, -15)).Name)
		k.Exec("INSERT INTO onceward.dedup_horizon (dropped_before) VALUES ($1)", k.Today.AddDate(0, 0, -9))
		require.Empty(k.T, k.Maintain().Made)
		report, err := audit.Check(k.T.Context(), k.Conn, audit.Config{})
		require.NoError(k.T, err)
		require.Equal(k.T, "hole", report.Findings[0].Check)
		require.Contains(k.T, report.Findings[0].Do, "`outboxctl windows raise GROUP CLASS --reason \"…\"`")
	})
}

func TestRetentionMakesRoomForLongWindows(t *testing.T) {
	k := newKept(t, "15")
	k.Window("billing", "Order*", 20*24*time.Hour, -8)
	report := k.Maintain()
	require.Equal(t, 64, report.Ahead)
	require.NotContains(t, report.Made, partition.OfDay("processed_events", k.Today.AddDate(0, 0, -9)).Name, "nothing below the oldest")
	require.Equal(t, retention.LeafOpen, claimstest.Find(report, k.Leaf).State)
	require.Empty(t, claimstest.Find(report, k.Leaf).Why, "nobody expects it to go")
}

// TestPartitionsWaitForTheClock (W7): the ids of arrivals lie ahead of every floor,
// so that a partition stays until the clock has passed it too.
func TestPartitionsWaitForTheClock(t *testing.T) {
	k := newKept(t, "15")
	k.Exec("UPDATE onceward.dedup_windows SET floor = $1", k.Today.AddDate(0, 0, 3)) // a clock was ahead, and is back
	report := k.Maintain()
	require.False(t, k.Exists(k.Leaf))
	today := claimstest.Find(report, partition.OfDay("processed_events", k.Today).Name)
	require.Equal(t, retention.LeafOpen, today.State)
	require.Equal(t, k.Today, report.Horizon.UTC())
}
