//go:build e2e

package main

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator/windows"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/migrations"
)

// mark says how far a group has got in a topic partition.
func (d *installation) mark(group, topic string, part int, finished any, saved string) {
	d.t.Helper()
	exec(d.t, d.pool, `INSERT INTO onceward.progress (consumer_group, topic, kafka_partition, low_offset, high_offset, finished_time, updated_at)
		VALUES ($1, $2, $3, 0, 9, $4, now() - $5::interval)`, group, topic, part, finished, saved)
}

// daysAgo is the start of a UTC day.
func daysAgo(n int) time.Time { return partition.Day(time.Now()).AddDate(0, 0, -n) }

// What a lock keeps the list from reading is told as audit tells it.
func TestWindowsListBesideALock(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		exec(t, d.pool, insertWindow, "billing", "*", "7 days", daysAgo(7))
		tx, err := d.pool.Begin(t.Context())
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
		_, err = tx.Exec(t.Context(), "LOCK TABLE onceward.processed_events IN ACCESS EXCLUSIVE MODE")
		require.NoError(t, err)
		said := wrong(t, "windows", "list")
		require.Regexp(t, `billing +\* +7d`, said)
		require.Contains(t, said, "! not finished: floors: ")
		require.Contains(t, said, "! not finished: partitions: ")
		require.Contains(t, said, "pg_stat_activity shows whether a session holds a lock: end that and look again")
		require.NotContains(t, said, "canceling statement")
	})
}

func TestWindowsList(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		require.Contains(t, fine(t, "windows", "list"), "none\n")
		exec(t, d.pool, insertWindow, "billing", "*", "7 days", daysAgo(7))
		exec(t, d.pool, insertWindow, "billing", "Pay*", "1 day", daysAgo(5))
		exec(t, d.pool, insertWindow, "mail", "*", "1 day", daysAgo(6))
		d.mark("billing", "orders.order", 0, time.Now(), "1 second")
		d.mark("billing", "orders.order", 1, daysAgo(4), "3 days")
		exec(t, d.pool, "UPDATE onceward.dedup_windows SET retired_at = now() WHERE consumer_group = 'mail'")
		got := decode[windows.Report](t, fine(t, "windows", "list", "-o", "json"))
		require.Len(t, got.Windows, 3)
		all, pay := got.Windows[0], got.Windows[1]
		require.Equal(t, "7d", all.Window)
		require.Equal(t, "orders.order/1", all.Slowest)
		require.True(t, daysAgo(4).Equal(*all.StreamTime))
		require.Equal(t, "Pay*", pay.Class)
		require.Contains(t, pay.Why, "partition 1 of topic orders.order up to events of "+daysAgo(4).Format(time.RFC3339)+" only")
		require.False(t, pay.Wrong, "the table does not grow")
		require.True(t, daysAgo(7).Equal(*got.OldestPartition))
		out := fine(t, "windows", "list", "--group", "mail")
		require.Regexp(t, `mail +\* +1d +process, dead-letter .* retired`, out)
		require.NotContains(t, out, "billing")

		exec(t, d.pool, "UPDATE onceward.dedup_windows SET raised_at = now() - interval '3 days'")
		d.claim(newKey(t, "orders").UUID(), "billing", "p")
		out = wrong(t, "windows", "list")
		require.Regexp(t, `billing +Pay\* .* stands still`, out)
		require.Contains(t, out, "! billing Pay*: the group has finished partition 1 of topic orders.order")
	})
}

// What can be listed is listed beside partitions that are not as they should be.
func TestWindowsListBesideWrongPartitions(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		exec(t, d.pool, insertWindow, "billing", "*", "7 days", daysAgo(7))
		day := func(n int) string { return "onceward." + partition.OfDay("processed_events", daysAgo(n)).Name }
		list := func(oldest int, troubles ...string) {
			t.Helper()
			out := wrong(t, "windows", "list", "--group", "billing")
			require.Regexp(t, `billing +\* +7d `, out)
			require.Contains(t, out, "the oldest partition is that of "+daysAgo(oldest).Format(time.DateOnly))
			for _, trouble := range troubles {
				require.Contains(t, out, trouble)
			}
		}
		exec(t, d.pool, "DROP TABLE "+day(3))
		list(7, "! hole: "+daysAgo(3).Format(time.RFC3339)+" to ")
		exec(t, d.pool, "ALTER TABLE onceward.processed_events DETACH PARTITION "+day(1))
		list(7, "! maintain partitions: name of a partition is taken: ", "! detached: "+strings.TrimPrefix(day(1), "onceward."))
		// Where retention makes none anew, it is needed all the same.
		exec(t, d.pool, "INSERT INTO onceward.dedup_horizon (dropped_before) VALUES ($1)", daysAgo(5))
		exec(t, d.pool, "ALTER TABLE onceward.processed_events DETACH PARTITION "+day(7))
		list(6, "! detached: "+strings.TrimPrefix(day(7), "onceward."), `! floor: group billing, class "*"`)
		exec(t, d.pool, "CREATE TABLE onceward.rest PARTITION OF onceward.processed_events DEFAULT")
		list(6, "! default-partition: onceward.rest: ", "DO $onceward$ ")
	})
}

func TestWindowsSet(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		exec(t, d.pool, insertWindow, "billing", "*", "7 days", daysAgo(7))
		exec(t, d.pool, "UPDATE onceward.dedup_windows SET bucket = time_window")
		now := func() string {
			return column[string](d, "SELECT concat_ws(' ', time_window, late, replay, floor = $1) FROM onceward.dedup_windows", daysAgo(7))[0]
		}
		set := []string{"windows", "set", "billing", "*", "--window", "14d", "--late", "dead-letter", "--reason", "advised"}
		code, _, stderr := call(t, set...)
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, "this would set window 14d, late dead-letter of class * of group billing")
		out := fine(t, append(set, "--yes")...)
		require.Contains(t, out, "group billing class *: window 14d, late dead-letter")
		require.Contains(t, out, "members that run go by it within ten seconds")
		require.Contains(t, out, "a program whose configuration says a longer window lengthens it again at its next start")
		require.Equal(t, "336:00:00 dead-letter dead-letter t", now(), "the floor is as it was")
		got := decode[windows.Change](t, fine(t, "windows", "set", "billing", "*", "--replay", "process", "--reason", "r", "--yes", "-o", "json"))
		require.Equal(t, []string{"replay process"}, got.Changed)
		require.Equal(t, "336:00:00 dead-letter process t", now())
		require.Equal(t, []string{"windows set billing *: window 14d, late dead-letter advised " + d.operator, "windows set billing *: replay process r " + d.operator}, d.actions())
		code, _, stderr = call(t, "windows", "set", "billing", "Pay*", "--window", "1d", "--reason", "r", "--yes")
		require.Equal(t, exitFailed, code)
		require.Contains(t, stderr, "no such class in use; `outboxctl windows list` shows what there is")
		require.Len(t, d.actions(), 2)
	})
}

// A window that is set changes the buckets of arrivals with it, once at a time.
func TestWindowsSetBuckets(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		exec(t, d.pool, insertWindow, "hooks", "push", "3 days", daysAgo(0))
		exec(t, d.pool, insertWindow, "billing", "*", "15 minutes", daysAgo(0))
		set := func(more ...string) []string {
			return append([]string{"windows", "set", "--reason", "r", "--yes", "--window"}, more...)
		}
		code, _, stderr := call(t, set("4d", "hooks", "push")...)
		require.Equal(t, exitFailed, code, "a program of the release before has claims in buckets of 3d, which the next start must find")
		require.Contains(t, stderr, "no program of this release has registered it")
		require.Empty(t, d.actions())
		require.NotContains(t, fine(t, set("3d", "hooks", "push")...), "buckets", "that is what it is")
		fine(t, "windows", "set", "--reason", "r", "--yes", "--late", "process", "hooks", "push")
		exec(t, d.pool, "UPDATE onceward.dedup_windows SET time_window = CASE class WHEN '*' THEN time_window ELSE interval '4 days' END")
		exec(t, d.pool, "UPDATE onceward.dedup_windows SET bucket = time_window, keyed = CASE class WHEN '*' THEN 'event-time' ELSE 'arrival' END")
		require.NotContains(t, fine(t, set("4d", "hooks", "push")...), "buckets", "that is what they are")
		code, _, stderr = call(t, set("32d", "hooks", "push")...)
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, "--window 32d: want at most 31d of a class that is keyed by arrival")

		out := fine(t, set("8d", "hooks", "push")...)
		require.Contains(t, out, "group hooks class push: window 8d, buckets of arrivals 8d, from 4d")
		require.NotContains(t, out, "lengthens it again")
		fine(t, set("30d", "billing", "*")...)
		require.Equal(t, []string{"* 7 days 00:15:00 1 day 00:30:00", "push 8 days 4 days 9 days"}, column[string](d, `SELECT concat_ws(' ', class, justify_hours(bucket), justify_hours(old_bucket),
			justify_hours(date_trunc('minute', old_until - now() + interval '30 seconds'))) FROM onceward.dedup_windows ORDER BY class`))
		require.Contains(t, d.actions(), "windows set hooks push: window 8d, buckets of arrivals 8d, from 4d r "+d.operator)
		code, _, stderr = call(t, set("5d", "hooks", "push")...)
		require.Equal(t, exitFailed, code)
		require.Contains(t, stderr, "its buckets are being changed from 4d to 8d until ")
		list := decode[windows.Report](t, fine(t, "windows", "list", "--group", "hooks", "-o", "json"))
		require.Equal(t, "8d, 4d", list.Windows[0].Bucket+", "+list.Windows[0].OldBucket)
		exec(t, d.pool, "UPDATE onceward.dedup_windows SET old_until = now()")
		require.Contains(t, fine(t, set("5d", "hooks", "push")...), "buckets of arrivals 5d, from 8d")
	})
}

func TestWindowsRetire(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		exec(t, d.pool, insertWindow, "billing", "*", "7 days", daysAgo(7))
		exec(t, d.pool, insertWindow, "billing", "Pay*", "7 days", daysAgo(7))
		exec(t, d.pool, insertWindow, "mail", "*", "7 days", daysAgo(7))
		d.mark("billing", "orders.order", 0, time.Now(), "1 second")
		d.mark("billing", "orders.old", 0, daysAgo(9), "9 days")
		d.mark("billing", "orders.old", 1, nil, "9 days")
		retire := func(more ...string) []string {
			return append([]string{"windows", "retire", "billing", "--reason", "gone", "--yes"}, more...)
		}
		code, _, stderr := call(t, retire()...)
		require.Equal(t, exitFailed, code)
		require.Contains(t, stderr, "group billing runs: it saved its progress in orders.order/0 1s ago; stop it")
		code, _, stderr = call(t, retire("--topic", "orders.order")...)
		require.Equal(t, exitFailed, code)
		require.Contains(t, stderr, "group billing runs")
		code, _, stderr = call(t, retire("--topic", "orders.new")...)
		require.Equal(t, exitFailed, code)
		require.Contains(t, stderr, `group billing has no marks of topic "orders.new"`)
		require.Empty(t, d.actions())

		require.Contains(t, fine(t, retire("--topic", "orders.old")...), `marks of 2 partitions of topic "orders.old" retired`)
		require.Equal(t, []string{"orders.order"}, column[string](d, "SELECT topic FROM onceward.progress WHERE retired_at IS NULL"))
		require.Len(t, column[string](d, "SELECT topic FROM onceward.progress"), 3, "how far it has got is kept")
		retired := func() []string {
			return column[string](d, "SELECT consumer_group || ' ' || class FROM onceward.dedup_windows WHERE retired_at IS NOT NULL ORDER BY 1")
		}
		require.Contains(t, fine(t, retire("--class", "Pay*")...), "group billing class Pay*: 1 class retired")
		require.Equal(t, []string{"billing Pay*"}, retired())
		exec(t, d.pool, "UPDATE onceward.progress SET updated_at = now() - interval '2 minutes'")
		out := fine(t, retire()...)
		require.Contains(t, out, "group billing: 1 class retired")
		require.Contains(t, out, "registers them again, with floors above what was dropped meanwhile")
		require.Equal(t, []string{"billing *", "billing Pay*"}, retired())
		require.Equal(t, []string{
			"windows retire --topic billing orders.old gone " + d.operator, "windows retire billing Pay* gone " + d.operator, "windows retire billing * gone " + d.operator,
		}, d.actions())
		code, _, stderr = call(t, retire()...)
		require.Equal(t, exitFailed, code)
		require.Contains(t, stderr, "no such class in use")
	})
}

// A group that makes progress and has no window keeps every partition: what retention
// prints lets it go.
func TestWindowsRetireOfAGroupWithoutWindows(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		exec(t, d.pool, insertWindow, "billing", "*", "1 day", daysAgo(1))
		exec(t, d.pool, "UPDATE onceward.dedup_windows SET raised_at = now() - interval '1 hour'")
		d.mark("ghost", "orders.old", 0, daysAgo(9), "9 days")
		printed := regexp.MustCompile("`outboxctl (windows retire [^`]*)`").FindStringSubmatch(wrong(t, "partitions", "status", "--side", "consumer"))
		require.NotNil(t, printed)
		require.Contains(t, fine(t, append(strings.Fields(strings.ReplaceAll(printed[1], `"…"`, "gone")), "--yes")...), "group ghost: marks of 1 partition retired")
		require.Equal(t, []string{"windows retire ghost  gone " + d.operator}, column[string](d, "SELECT concat_ws(' ', action, consumer_group, target, reason, by_role) FROM onceward.consumer_actions"))
		_, out, _ := call(t, "partitions", "status", "--side", "consumer")
		require.NotContains(t, out, "ghost")
		require.Contains(t, out, "every floor has passed it; would be dropped")
		code, _, stderr := call(t, "windows", "retire", "nobody", "--reason", "r", "--yes")
		require.Equal(t, exitFailed, code)
		require.Contains(t, stderr, "no such class in use")
	})
}

// Partitions are the owner's: a maintainer adopts, an operator is told so.
func TestWindowsAdopt(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		from := daysAgo(30)
		adopt := []string{"windows", "adopt", "reports", "--from", from.Format(time.DateOnly), "--class", "Pay*", "--class", "*", "--window", "3d", "--reason", "new dashboard"}
		code, _, stderr := call(t, adopt...)
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, "this would let the new group reports (classes Pay*, *) claim events from "+from.Format(time.DateOnly)+" on, and make 23 partitions for it")
		code, _, stderr = call(t, append(adopt, "--yes")...)
		require.Equal(t, exitFailed, code)
		require.Contains(t, stderr, "connect as a member of the role onceward_consumer_maintainer")

		maintainer := strings.TrimPrefix(strings.TrimSuffix(d.operator, string(migrations.RoleOperator)), "login-") + string(migrations.RoleConsumerMaintainer)
		loginAs(t, d.pool, d.pool.Config().ConnString(), maintainer)
		out := fine(t, append(adopt, "--yes")...)
		require.Contains(t, out, "group reports class Pay*: floor "+from.Format(time.RFC3339))
		require.Contains(t, out, "made 23 partitions: processed_events_"+from.Format("20060102"))
		require.Contains(t, out, "start the group at the oldest offset")
		require.Equal(t, []string{"* 72:00:00 t", "Pay* 72:00:00 t"}, column[string](d, "SELECT concat_ws(' ', class, time_window, floor = $1) FROM onceward.dedup_windows ORDER BY 1", from))
		require.Contains(t, d.actions(), "windows adopt reports Pay* new dashboard login-"+maintainer)

		d.claim(newKey(t, "orders").UUID(), "reports", "p")
		code, _, stderr = call(t, append(adopt, "--yes")...)
		require.Equal(t, exitFailed, code)
		require.Contains(t, stderr, "the group is not new: it has claims; to make it apply old events again, replay them, in the producer's database: `outboxctl replay --from DAY --reprocess reports --config FILE --reason \"…\"`")
		code, _, stderr = call(t, "windows", "adopt", "other", "--from", "2019-01-01", "--reason", "r", "--yes")
		require.Equal(t, exitFailed, code)
		require.Contains(t, stderr, "want a time of the last 366 days")
	})
}

// What audit prints for a floor below what claims are kept of mends it, as the
// maintainer, and an operator is told who may.
func TestWindowsRaise(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		exec(t, d.pool, insertWindow, "billing", "Pay*", "7 days", daysAgo(9))
		exec(t, d.pool, insertWindow, "billing", "*", "7 days", daysAgo(7))
		exec(t, d.pool, "INSERT INTO onceward.dedup_horizon (dropped_before) VALUES ($1)", daysAgo(8))
		printed := regexp.MustCompile("`outboxctl (windows raise [^`]*)`")
		found := printed.FindAllStringSubmatch(wrong(t, "audit"), -1)
		require.Len(t, found, 2, "floor and horizon")
		require.Equal(t, found[0], found[1])
		command := append(strings.Fields(strings.NewReplacer("'", "", `"…"`, "lost").Replace(found[0][1])), "--yes")
		code, _, stderr := call(t, command...)
		require.Equal(t, exitFailed, code)
		require.Contains(t, stderr, "connect as a member of the role onceward_consumer_maintainer")

		maintainer := strings.TrimPrefix(strings.TrimSuffix(d.operator, string(migrations.RoleOperator)), "login-") + string(migrations.RoleConsumerMaintainer)
		loginAs(t, d.pool, d.pool.Config().ConnString(), maintainer)
		oldest := "onceward.processed_events_" + daysAgo(7).Format("20060102")
		exec(t, d.pool, "ALTER TABLE onceward.processed_events DETACH PARTITION "+oldest)
		code, _, stderr = call(t, command...)
		require.Equal(t, exitFailed, code)
		require.Contains(t, stderr, "is detached, and may have claims from there on: attach it again (as a member of the role \""+strings.TrimSuffix(maintainer, "consumer_maintainer")+"owner\": ALTER TABLE ")
		exec(t, d.pool, regexp.MustCompile(`ALTER TABLE [^)]*\) TO \('[^)]*\)`).FindString(stderr))
		out := fine(t, command...)
		require.Contains(t, out, "group billing class Pay*: floor "+daysAgo(7).Format(time.DateOnly))
		require.Equal(t, "nothing is wrong\n", fine(t, "audit"))
		require.Len(t, d.actions(), 1)
		require.Contains(t, d.actions()[0], "windows raise billing Pay*: floor "+daysAgo(7).Format(time.DateOnly))
		code, _, stderr = call(t, command...)
		require.Equal(t, exitFailed, code)
		require.Contains(t, stderr, "is not below where claims are kept")
		code, _, stderr = call(t, "windows", "raise", "billing", "Ref*", "--reason", "r", "--yes")
		require.Equal(t, exitFailed, code)
		require.Contains(t, stderr, "no such class in use")
	})
}

func TestWindowsAdvise(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		require.Contains(t, fine(t, "windows", "advise"), "no group has registered a window")
		exec(t, d.pool, insertWindow, "billing", "*", "1 day", daysAgo(1))
		exec(t, d.pool, insertWindow, "mail", "*", "1 day", daysAgo(1))
		require.Contains(t, fine(t, "windows", "advise"), "no duplicate seen yet")
		exec(t, d.pool, `INSERT INTO onceward.redeliveries (consumer_group, event_type, age_log2, seen, oldest) VALUES
			('billing', 'OrderPaid', 3, 100, '15 seconds'), ('billing', 'OrderPaid', 15, 1, '13 hours'), ('mail', 'OrderPaid', 3, 1, '9 seconds')`)
		out := wrong(t, "windows", "advise")
		require.Regexp(t, `billing +\* +1d +101 +13h +OrderPaid +too small +16s: 100, 18h12m16s: 1`, out)
		require.Contains(t, out, "! billing *: a duplicate of OrderPaid came 13h late, more than half the window of 1d: make it 2d: `outboxctl windows set --window 2d --reason \"…\" billing '*'`")
		require.Regexp(t, `mail +\* +1d +1 +9s +OrderPaid +enough`, out)
		got := decode[windows.Advice](t, fine(t, "windows", "advise", "--group", "mail", "-o", "json"))
		require.Len(t, got.Windows, 1)
		require.Equal(t, []windows.Age{{UpTo: "16s", Seen: 1}}, got.Windows[0].Ages)

		key := late(t, time.Now().Add(-50*time.Hour))
		d.keep("mail", "t", "replay", &key)
		d.keep("mail", "t", "handler", &key)
		d.keep("mail", "t", "replay", nil)
		require.Regexp(t, `mail \*: 1 copy came from below the floor and is kept as a letter, the oldest 2d2h(0m\d+s)? late`, fine(t, "windows", "advise", "--group", "mail"))
	})
}
