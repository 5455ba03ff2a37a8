//go:build e2e

package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	consumeraudit "github.com/onceward/onceward/consumer/audit"
	"github.com/onceward/onceward/consumer/retention"
	"github.com/onceward/onceward/internal/operator/partitions"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/outbox"
)

// newClaims makes a consumer's database, as the maintainer of its roles, with a
// leaf of eight days ago that is no longer needed once the floor is raised.
func newClaims(t *testing.T) (pool *pgxpool.Pool, leaf string, as func(role string)) {
	t.Helper()
	pool, dsn := newDatabase(t)
	prefix := "ctl-" + pool.Config().ConnConfig.Database
	fine(t, "migrate", "roles", "--side", "consumer", "--prefix", prefix, "--apply")
	known := make(map[string]string)
	as = func(role string) {
		if known[role] == "" {
			loginAs(t, pool, dsn, prefix+"_"+role)
			known[role] = os.Getenv(dsnVariable)
		}
		t.Setenv(dsnVariable, known[role])
	}
	as("consumer_maintainer")
	fine(t, "migrate", "up", "--side", "consumer")
	day := partition.Day(time.Now()).AddDate(0, 0, -8)
	made, err := partition.Ensure(t.Context(), pool, "onceward.processed_events", "event_id", partition.Span{First: day, Last: day, Reopen: true})
	require.NoError(t, err)
	exec(t, pool, "INSERT INTO onceward.dedup_windows (consumer_group, class, time_window, floor, raised_at) VALUES ('billing', '*', '7 days', $1, now() - interval '3 days')", day)
	return pool, made[0], as
}

func finished(t *testing.T, pool *pgxpool.Pool, upTo time.Time) {
	t.Helper()
	exec(t, pool, `INSERT INTO onceward.progress (consumer_group, topic, kafka_partition, low_offset, high_offset, finished_time) VALUES ('billing', 'orders', 0, 0, 1, $1)
		ON CONFLICT (consumer_group, topic, kafka_partition, topic_id) DO UPDATE SET finished_time = excluded.finished_time`, upTo)
}

func TestClaimsAreMaintained(t *testing.T) {
	pool, leaf, as := newClaims(t)
	finished(t, pool, time.Now())
	state := func(stdout string) string {
		for _, l := range decode[partitions.ClaimsReport](t, stdout).Leaves {
			if l.Name == leaf {
				return l.State
			}
		}
		return ""
	}
	as("operator")
	week := partition.Day(time.Now()).AddDate(0, 0, -7).Format(time.DateOnly)
	out := fine(t, "partitions", "status", "--side", "consumer")
	require.Regexp(t, `GROUP +CLASS +WINDOW +FLOOR WAS +WOULD BE +HELD BACK BY\nbilling +\* +7d +\S+ +`+week, out)
	require.Contains(t, out, "64 days ahead are covered")
	code, stdout, stderr := call(t, "partitions", "maintain", "--side", "consumer")
	require.Equal(t, exitFailed, code)
	require.Empty(t, stdout, "no report of what it did not do")
	require.Contains(t, stderr, "permission denied")
	require.Contains(t, stderr, "connect as a member of the role onceward_consumer_maintainer")

	as("consumer_maintainer")
	require.Equal(t, "open", state(fine(t, "partitions", "maintain", "--side", "consumer", "--dry-run", "-o", "json")))
	require.Equal(t, "open", state(fine(t, "partitions", "maintain", "--side", "consumer", "-o", "json")), "the floor is raised, and gets a minute to be seen")
	exec(t, pool, "UPDATE onceward.dedup_windows SET raised_at = now() - interval '2 minutes'")
	require.Equal(t, "closed", state(fine(t, "partitions", "status", "--side", "consumer", "-o", "json")))
	report := decode[partitions.ClaimsReport](t, fine(t, "partitions", "maintain", "--side", "consumer", "-o", "json", "--ahead", "66"))
	require.Len(t, report.Made, 2)
	require.Equal(t, week, report.Horizon.UTC().Format(time.DateOnly))
	require.NotContains(t, fine(t, "partitions", "status", "--side", "consumer"), leaf)
	require.Equal(t, "nothing is wrong\n", fine(t, "audit", "--group", "billing"))
}

// Nobody is told that all is well where not all was looked at.
func TestAnAuditThatIsCutShortIsNoGoodNews(t *testing.T) {
	pool, _, as := newClaims(t)
	as("operator")
	require.Equal(t, "nothing is wrong\n", fine(t, "audit"))
	// By arrival, so that none of them is wrong, and more than are looked at.
	exec(t, pool, `INSERT INTO onceward.processed_events (event_id, consumer_group, event_type, namespace, fingerprint, outcome)
		SELECT (left($1::text, 13) || '-8000-8000-' || lpad(n::text, 12, '0'))::uuid, 'billing', 'Paid', 'shop', '\x00', 'd' FROM generate_series(1, 1001) n`, outbox.FirstID(daysAgo(0)))
	exec(t, pool, "UPDATE onceward.dedup_windows SET bucket = '1 day'")
	code, stdout, _ := call(t, "audit")
	require.Equal(t, exitWrong, code)
	require.Equal(t, "! not finished: dead-claim: the first 1000 rows were looked at\n", stdout)
	audit := consumeraudit.Report{Unfinished: []string{"fence: a statement took longer"}}
	require.Contains(t, partitions.NewClaimsReport(retention.Report{}, audit, true).Problems[0].What, "not finished: fence: a statement took longer")
}

// What audit prints for claims and letters that do not belong together is done as it is
// printed, until nothing is wrong.
func TestWhatAuditPrintsOfDeadEventsIsDone(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		exec(t, d.pool, insertWindow, "billing", "*", "7 days", daysAgo(7))
		do := func(commands ...string) {
			t.Helper()
			said := wrong(t, "audit")
			for _, command := range commands {
				printed := regexp.MustCompile("`outboxctl (" + command + " [^`]*)`").FindStringSubmatch(said)
				require.NotNil(t, printed, said)
				args := strings.Fields(strings.NewReplacer("'", "", `"…"`, "audited").Replace(printed[1]))
				if args[1] != "show" {
					args = append(args, "--yes")
				}
				fine(t, args...)
			}
			require.Equal(t, "nothing is wrong\n", fine(t, "audit"))
		}
		dead, given := newKey(t, "orders"), newKey(t, "orders")
		d.claim(dead.UUID(), "billing", "d")
		do("processed forget")
		d.claim(given.UUID(), "billing", "p")
		at := d.keep("billing", "orders.order", "handler", &given)
		exec(t, d.pool, "UPDATE onceward.consumer_dead_letters SET claim_id = event_id")
		require.Contains(t, wrong(t, "audit"), "letter "+at.String()+" of event "+given.String()+": ")
		do("processed show", "dead discard")
		exec(t, d.pool, "UPDATE onceward.consumer_dead_letters SET state = 'requested'")
		require.Contains(t, wrong(t, "audit"), "else let the group redrive it, which is asked for")
		do("dead discard")
		exec(t, d.pool, "UPDATE onceward.consumer_dead_letters SET state = 'open'")
		wait := d.member("UPDATE onceward.consumer_dead_letters SET state = 'redriven'")
		do("dead redrive")
		wait()
	})
}

func TestWhatIsWrongWithClaimsIsSaid(t *testing.T) {
	pool, leaf, as := newClaims(t)
	claim := func(at time.Time, outcome string) uuid.UUID {
		id, first := uuid.New(), outbox.FirstID(at)
		copy(id[:6], first[:6])
		id[6] = 0x70 | id[6]&0x0f
		exec(t, pool, `INSERT INTO onceward.processed_events (event_id, consumer_group, event_type, namespace, fingerprint, outcome) VALUES ($1, 'billing', 'Paid', 'shop', '\x00', $2)`, id, outcome)
		return id
	}
	claim(time.Now(), "p")
	finished(t, pool, time.Now().AddDate(0, 0, -30))
	wrong := func(want string, args ...string) {
		t.Helper()
		code, stdout, stderr := call(t, args...)
		require.Equal(t, exitWrong, code, stderr)
		require.Contains(t, stdout, want)
	}
	status := []string{"partitions", "status", "--side", "consumer"}
	as("operator")
	fine(t, status...) // one day behind is nothing
	exec(t, pool, "UPDATE onceward.dedup_windows SET floor = floor - interval '29 days'")
	wrong(`! the floor of class "*" of group billing stands still: the group has finished partition 0 of topic orders up to events of `, status...)
	finished(t, pool, time.Now())
	wrong("! floor: group billing, class \"*\", floor ", status...)
	exec(t, pool, "UPDATE onceward.dedup_windows SET floor = floor + interval '29 days'")
	fine(t, status...)

	dead := claim(time.Now(), "d")
	fine(t, status...) // does not look at claims
	wrong("! dead-claim: group billing, event shop:"+dead.String()+": events were given up and no letter of them stands", "audit")
	wrong("! unknown-group: group stock, this database: nothing is known of the group", "audit", "--group", "stock")
	exec(t, pool, "INSERT INTO onceward.dedup_windows SELECT (jsonb_populate_record(w, '{\"consumer_group\": \"stock\"}')).* FROM onceward.dedup_windows w WHERE consumer_group = 'billing'")
	require.Equal(t, "nothing is wrong\n", fine(t, "audit", "--group", "stock"))
	exec(t, pool, "DELETE FROM onceward.dedup_windows WHERE consumer_group = 'stock'")
	code, stdout, _ := call(t, "audit", "-o", "json")
	require.Equal(t, exitWrong, code)
	require.Equal(t, dead.String(), decode[consumeraudit.Report](t, stdout).Findings[0].Subject[len("event shop:"):])

	exec(t, pool, "ALTER TABLE onceward.processed_events DETACH PARTITION onceward."+leaf)
	wrong("! "+leaf+": somebody detached it, although its claims are needed: attach it again", status...)
	exec(t, pool, "CREATE TABLE onceward.rest PARTITION OF onceward.processed_events DEFAULT")
	wrong("! "+leaf+": somebody detached it, although its claims are needed: `outboxctl audit` prints how to bring it back", status...)
	maintain := []string{"partitions", "maintain", "--side", "consumer"}
	for _, command := range [][]string{status, maintain} {
		as(map[bool]string{true: "operator", false: "consumer_maintainer"}[command[1] == "status"])
		wrong("! default-partition: onceward.rest: ", command...)
		_, stdout, _ = call(t, command...)
		require.Contains(t, stdout, "64 days ahead are covered", "the other partitions are counted")
		require.NotContains(t, stdout, "all partitions take 0 B")
		require.Contains(t, stdout, "beside the DEFAULT partition onceward.rest none is made")
		require.NotContains(t, stdout, "partitions reach only")
	}
	exec(t, pool, "ALTER TABLE onceward.processed_events DETACH PARTITION onceward.processed_events_"+daysAgo(0).Format("20060102"))
	wrong("! partitions reach only 0 days ahead; beside the DEFAULT partition onceward.rest none is made", maintain...)
	exec(t, pool, "CREATE TABLE onceward.processed_events_20200101 (LIKE onceward.processed_events)") // of the superuser
	exec(t, pool, "INSERT INTO onceward.dedup_horizon (dropped_before) VALUES ('2020-01-02T00:00:00Z')")
	code, stdout, stderr := call(t, maintain...)
	require.Equal(t, exitFailed, code, "an error of one day is told beside it")
	require.Contains(t, stderr, "partition processed_events_20200101: drop: ")
	require.NotContains(t, stderr, "DEFAULT")
	require.Contains(t, stdout, "! default-partition: onceward.rest: ")
	as("operator")
	wrong("! default-partition: ", "audit")
	exec(t, pool, "DROP TABLE onceward.rest, onceward.processed_events_20200101")
	wrong("! maintain partitions: name of a partition is taken: ", status...)
	exec(t, pool, "DROP TABLE onceward.processed_events_"+daysAgo(0).Format("20060102"))
	exec(t, pool, "DO $$ DECLARE p regclass; BEGIN FOR p IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'onceward.processed_events'::regclass LOOP EXECUTE 'DROP TABLE ' || p; END LOOP; END $$")
	wrong("! partitions reach only 0 days ahead; run `outboxctl partitions maintain --side consumer`", status...)

	exec(t, pool, "DROP SCHEMA onceward CASCADE")
	code, _, stderr = call(t, status...)
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "run `outboxctl migrate up --side consumer`")
}
