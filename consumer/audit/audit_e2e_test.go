//go:build e2e

package audit_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/audit"
	"github.com/onceward/onceward/consumer/internal/claimstest"
	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
)

func TestMain(m *testing.M) { os.Exit(testdb.Main(m)) }

const week = claimstest.Week

// kept is a database that is audited.
type kept struct{ *claimstest.Database }

func newKept(t *testing.T, version string) *kept {
	t.Helper()
	return &kept{claimstest.New(t, version)}
}

func onBoth(t *testing.T, test func(*kept)) {
	t.Helper()
	claimstest.OnBoth(t, func(d *claimstest.Database) { test(&kept{d}) })
}

func TestAuditFindsNothingInASoundDatabase(t *testing.T) {
	onBoth(t, func(k *kept) {
		old := claimstest.IDAt(k.Today.AddDate(0, 0, -8))
		k.Claim(old, "billing", "p", time.Now().Add(-8*24*time.Hour))
		k.Claim(claimstest.IDAt(k.Today), "billing", "p", time.Now())
		require.Empty(k.T, k.Audit())
		k.Maintain()
		require.Empty(k.T, k.Audit())
		require.False(k.T, k.Exists(k.Leaf))

		// Claims from before a floor was raised stay until their partition goes.
		k.Claim(claimstest.IDAt(k.Today.AddDate(0, 0, -7)), "billing", "p", time.Now())
		k.Exec("UPDATE onceward.dedup_windows SET floor = $1, raised_at = clock_timestamp()", k.Today.AddDate(0, 0, -3))
		require.Empty(k.T, k.Audit())

		pool, err := pgxpool.NewWithConfig(k.T.Context(), k.As(migrations.RoleConsumer))
		require.NoError(k.T, err)
		defer pool.Close()
		_, err = consumer.New(k.T.Context(), consumer.Config{Group: "billing", DB: pool})
		require.NoError(k.T, err)
		report, err := audit.Check(k.T.Context(), pool, audit.Config{Group: "billing"})
		require.NoError(k.T, err)
		require.Empty(k.T, report)
	})
}

func TestAuditFailsLoudlyAtADefaultPartition(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.Exec("CREATE TABLE onceward.processed_events_rest PARTITION OF onceward.processed_events DEFAULT")
		k.Fence(claimstest.IDAt(k.Today), "PENDING", 2*time.Hour)
		report, err := audit.Check(k.T.Context(), k.Dial(migrations.RoleConsumer), audit.Config{})
		require.ErrorIs(k.T, err, consumer.ErrDefaultPartition)
		require.Equal(k.T, "default-partition onceward.processed_events_rest", report.Findings[0].Check+" "+report.Findings[0].Subject)
		require.Equal(k.T, "fence", report.Findings[1].Check, "the other checks go on")
		require.Len(k.T, report.Unfinished, 3)
	})
}

// A DEFAULT partition hides a day that somebody detached. What is printed brings both
// back, with the claims that were made meanwhile; what nobody needs any more goes.
func TestADefaultPartitionIsTakenAway(t *testing.T) {
	onBoth(t, func(k *kept) {
		detached, dropped := partition.OfDay("processed_events", k.Today.AddDate(0, 0, -3)).Name, partition.OfDay("processed_events", k.Today.AddDate(0, 0, -5)).Name
		before, both, made, gone := claimstest.IDAt(k.Today.AddDate(0, 0, -3)), claimstest.IDAt(k.Today.AddDate(0, 0, -3)), claimstest.IDAt(k.Today.AddDate(0, 0, -5)), claimstest.IDAt(k.Today.AddDate(0, 0, -20))
		k.Claim(before, "billing", "d", time.Now())
		k.Claim(both, "billing", "p", time.Now())
		k.Letter(before, 1, "handler", "open")
		k.Exec("ALTER TABLE onceward.processed_events DETACH PARTITION onceward." + detached)
		k.Exec("DROP TABLE onceward." + dropped)
		k.Exec(`CREATE TABLE onceward."the Rest" PARTITION OF onceward.processed_events DEFAULT`)
		k.Exec(`ALTER TABLE onceward."the Rest" OWNER TO onceward_consumer_maintainer`)
		for _, id := range []uuid.UUID{both, made, gone} {
			k.Claim(id, "billing", "p", time.Now())
		}
		report, err := audit.Check(k.T.Context(), k.Dial(migrations.RoleConsumer), audit.Config{})
		require.ErrorIs(k.T, err, consumer.ErrDefaultPartition)
		var found []string
		for _, f := range report.Findings {
			found = append(found, f.Check+" "+f.Subject)
		}
		require.Equal(k.T, []string{
			`default-partition onceward."the Rest"`, "hole " + k.Date(-5) + "T00:00:00Z to " + k.Date(-4) + "T00:00:00Z",
			"hole " + k.Date(-3) + "T00:00:00Z to " + k.Date(-2) + "T00:00:00Z", "detached " + detached,
		}, found)
		require.Contains(k.T, report.Unfinished, "letter: not looked at, because of the DEFAULT partition")
		for _, f := range report.Findings[1:] {
			require.Contains(k.T, f.Do, "do what default-partition says")
		}
		printed := k.cured()
		_, err = k.Conn.Exec(k.T.Context(), printed)
		require.NoError(k.T, err, printed)
		k.Maintain()
		require.Empty(k.T, k.Audit())
		for id, want := range map[uuid.UUID]string{before: detached + " d", both: detached + " p", made: dropped + " p"} {
			require.Equal(k.T, "onceward."+want, k.Text("SELECT concat_ws(' ', tableoid::regclass, outcome) FROM onceward.processed_events WHERE event_id = $1", id))
		}
		require.Equal(k.T, "0", k.Text("SELECT count(*)::text FROM onceward.processed_events WHERE event_id = $1", gone))
		require.Equal(k.T, "1", k.Text("SELECT count(DISTINCT tableowner)::text FROM pg_tables WHERE schemaname = 'onceward'"))
	})
}

// What another session keeps an audit from reading is told, and so is each check that
// would have judged by it.
func TestAuditSaysWhatItDidNotLookAt(t *testing.T) {
	k := newKept(t, "15")
	k.Claim(claimstest.IDAt(k.Today), "billing", "d", time.Now())
	tx, err := k.Admin.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = tx.Exec(t.Context(), "LOCK TABLE onceward."+k.Leaf+" IN ACCESS EXCLUSIVE MODE")
	require.NoError(t, err)
	report, err := audit.Check(t.Context(), k.Dial(migrations.RoleConsumer), audit.Config{}.Impatient(500*time.Millisecond))
	require.NoError(t, err)
	require.Empty(t, report.Findings)
	require.Contains(t, report.Unfinished[0], "a statement took longer than 500ms; ")
	var checks []string
	for _, cut := range report.Unfinished {
		check, why, _ := strings.Cut(cut, ": ")
		require.NotEmpty(t, why)
		checks = append(checks, check)
	}
	require.Equal(t, []string{"partitions", "floor", "below-floor", "twice", "dead-claim", "letter"}, checks)
}

// A letter whose claim lies in a day that is not attached is no finding of its own.
func TestAuditDoesNotJudgeLettersOfADayThatIsNotThere(t *testing.T) {
	onBoth(t, func(k *kept) {
		// Else its buckets are of a week: each Sunday one begins in the day that is not there.
		k.Exec("UPDATE onceward.dedup_windows SET bucket = '1 day'")
		detached := partition.OfDay("processed_events", k.Today.AddDate(0, 0, -3)).Name
		hidden, seen := claimstest.IDAt(k.Today.AddDate(0, 0, -3)), claimstest.IDAt(k.Today)
		k.Claim(hidden, "billing", "d", time.Now())
		k.Letter(hidden, 1, "handler", "open")
		k.Letter(seen, 2, "handler", "open")
		for _, sql := range []string{"ALTER TABLE onceward.processed_events DETACH PARTITION onceward.", "DROP TABLE onceward."} {
			k.Exec(sql + detached)
			report, err := audit.Check(k.T.Context(), k.Dial(migrations.RoleConsumer), audit.Config{})
			require.NoError(k.T, err)
			require.Equal(k.T, []string{"letter: 1 letter was not looked at, the first letter orders/0@1 of event " + hidden.String() +
				": the claims are of days that are not attached, see hole and detached"}, report.Unfinished)
			last := report.Findings[len(report.Findings)-1]
			require.Equal(k.T, "letter letter orders/0@2 of event "+seen.String()+" 1", fmt.Sprint(last.Check, " ", last.Subject, " ", last.Count))
		}
	})
}

func TestAuditOfTheTable(t *testing.T) {
	onBoth(t, func(k *kept) {
		young := partition.OfDay("processed_events", k.Today.AddDate(0, 0, -3)).Name
		k.Exec("ALTER TABLE onceward.processed_events DETACH PARTITION onceward." + young)
		k.Exec("INSERT INTO onceward.dedup_horizon (dropped_before) VALUES ($1)", k.Today.AddDate(0, 0, -5))
		k.Exec("UPDATE onceward.dedup_windows SET floor = $1", k.Today.AddDate(0, 0, -10))
		k.Window("stock", "*", week, -20)
		k.Fence(claimstest.IDAt(k.Today), "PENDING", 2*time.Hour)
		k.Fence(claimstest.IDAt(k.Today), "PENDING", 3*time.Hour)
		k.Fence(claimstest.IDAt(k.Today), "PENDING", time.Minute)
		require.Equal(k.T, []string{
			"hole  1 " + k.Date(-3) + "T00:00:00Z to " + k.Date(-2) + "T00:00:00Z",
			"detached  1 " + young,
			`floor billing 1 class "*", floor ` + k.Date(-10) + "T00:00:00Z",
			`horizon billing 1 class "*", floor ` + k.Date(-10) + "T00:00:00Z",
			"fence billing 2 since " + time.Now().Add(-3*time.Hour).UTC().Format("2006-01-02T15:04"),
		}, cutSeconds(k.Audit()))
	})
}

// cutSeconds leaves the seconds of a fence's time out.
func cutSeconds(findings []string) []string {
	for i, f := range findings {
		if strings.HasPrefix(f, "fence") {
			findings[i] = f[:len(f)-len(":05Z")]
		}
	}
	return findings
}

// Those that wait for an operator are the ones that fences list --stale shows; what was
// given up waits for nobody.
func TestAuditCountsTheFencesThatWait(t *testing.T) {
	onBoth(t, func(k *kept) {
		stale, stuck, expired, gone := claimstest.IDAt(k.Today), claimstest.IDAt(k.Today), claimstest.IDAt(k.Today), claimstest.IDAt(k.Today)
		for _, id := range []uuid.UUID{stale, stuck, expired, gone} {
			k.Fence(id, "PENDING", 2*time.Hour)
		}
		k.Exec("UPDATE onceward.fences SET provider_key_until = now() - interval '1 minute' WHERE event_id = ANY ($1)", []uuid.UUID{stale, gone})
		k.Exec("UPDATE onceward.fences SET stuck = 'the handler fences nothing' WHERE event_id = $1", stuck)
		k.Exec("UPDATE onceward.fences SET expires_at = now() + interval '1 day' WHERE event_id = $1", gone)
		report, err := audit.Check(k.T.Context(), k.Dial(migrations.RoleConsumer), audit.Config{})
		require.NoError(k.T, err)
		require.Len(k.T, report.Findings, 1)
		require.Equal(k.T, 3, report.Findings[0].Count)
		require.Contains(k.T, report.Findings[0].What, "2 of which wait for an operator")
		require.Contains(k.T, report.Findings[0].Do, "`outboxctl fences list --stale`")
	})
}

func TestAuditOfClaimsBelowTheFloor(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.Window("billing", "Order*", 24*time.Hour, -1)
		floor := k.Today.AddDate(0, 0, -8)
		k.Exec("UPDATE onceward.dedup_windows SET floor = $1, raised_at = now() - interval '1 day' WHERE class = '*'", floor.AddDate(0, 0, 2))
		now := time.Now()
		at := floor.Add(time.Hour)
		late, replay, claimed := claimstest.IDAt(at), claimstest.IDAt(at.Add(time.Minute)), claimstest.IDAt(at.Add(2*time.Minute))
		// A late event: by arrival, and under its own id.
		for _, id := range append(byArrival(late, now), late) {
			k.Claim(id, "billing", "p", now)
		}
		// Claimed while the floor was lower.
		k.Claim(claimed, "billing", "p", now.Add(-36*time.Hour))
		k.Claim(claimstest.IDAt(floor.AddDate(0, 0, 2)), "billing", "p", now) // at the floor
		k.Claim(replay, "stock", "p", now)                                    // another group, without a window
		require.Empty(k.T, k.Audit())

		k.Claim(replay, "billing", "p", now)
		k.Exec("INSERT INTO onceward.processed_events (event_id, consumer_group, event_type, namespace, fingerprint, outcome) VALUES ($1, 'billing', 'OrderPaid', 'shop', '\\x00', 'p')",
			claimstest.IDAt(at.Add(time.Hour)))
		found := k.Audit()
		require.Len(k.T, found, 1)
		require.Contains(k.T, found[0], "below-floor billing 2 event ", "one of each class")
	})
}

// Versions of a program work beside one another that have different classes for an
// event type: a claim is right that any of them allowed when it was made, because none
// lets the partitions go that it needs.
func TestAuditKnowsClassesOfOtherVersions(t *testing.T) {
	onBoth(t, func(k *kept) {
		claim := func(eventType string, day int, at time.Time) {
			k.Exec("INSERT INTO onceward.processed_events (event_id, consumer_group, event_type, namespace, fingerprint, outcome, processed_at) VALUES ($1, 'billing', $2, 'shop', '\\x00', 'p', $3)",
				claimstest.IDAt(k.Today.AddDate(0, 0, day)), eventType, at)
		}
		k.Window("billing", "Order*", 24*time.Hour, -1)
		k.Window("billing", "Stock*", 6*24*time.Hour, -6)
		k.Exec("UPDATE onceward.dedup_windows SET raised_at = now() - interval '1 day', floor = CASE class WHEN '*' THEN $1 ELSE floor END", k.Today.AddDate(0, 0, -4))
		now := time.Now()
		claim("OrderPaid", -3, now)  // by a version that has the class * only
		claim("StockMoved", -5, now) // by the other one
		require.Empty(k.T, k.Audit())
		k.Exec("UPDATE onceward.dedup_windows SET retired_at = clock_timestamp() WHERE class = 'Stock*'")
		require.Empty(k.T, k.Audit(), "it was claimed before the class was retired")
		k.Exec("UPDATE onceward.dedup_windows SET retired_at = clock_timestamp() - interval '1 hour' WHERE class = 'Stock*'")
		found := k.Audit()
		require.Len(k.T, found, 1)
		require.Contains(k.T, found[0], "of type StockMoved", "a retired class holds nothing back")
	})
}

// After a clock that was ahead is back, the floor may lie above the present, where
// events are claimed by arrival.
func TestAuditAllowsClaimsByArrival(t *testing.T) {
	k := newKept(t, "15")
	k.Exec("UPDATE onceward.dedup_windows SET floor = $1", k.Today.AddDate(0, 0, 1))
	for _, id := range byArrival(uuid.New(), time.Now()) {
		k.Claim(id, "billing", "p", time.Now())
	}
	require.Empty(t, k.Audit())
	k.Claim(claimstest.IDAt(k.Today), "billing", "p", time.Now())
	require.Len(t, k.Audit(), 1)
}

func byArrival(id uuid.UUID, at time.Time) []uuid.UUID {
	ids := claims.IDs(id, week, at)
	return ids[:]
}

func TestAuditFindsAKeyThatIsThereTwice(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.Exec("ALTER TABLE onceward.processed_events DROP CONSTRAINT processed_events_pkey")
		k.Exec("CREATE INDEX ON onceward.processed_events (event_id, consumer_group)")
		k.Exec("CREATE UNIQUE INDEX ON onceward.processed_events (event_id, consumer_group) WHERE outcome = 'd'")
		k.Exec("CREATE UNIQUE INDEX ON onceward.processed_events (event_id, consumer_group, processed_at)")
		id := claimstest.IDAt(k.Today)
		for range 2 {
			k.Claim(id, "billing", "p", time.Now())
		}
		k.Claim(id, "stock", "p", time.Now())
		require.Equal(k.T, []string{
			"key  73 " + k.Leaf,
			"twice billing 1 event shop:" + id.String(),
		}, k.Audit())
		report, err := audit.Check(k.T.Context(), k.Dial(migrations.RoleConsumer), audit.Config{})
		require.NoError(k.T, err)
		require.Equal(k.T, "compare the effects, then remove one of the claims", report.Findings[1].Do, "there is no key that REINDEX could check")
		k.Exec("DELETE FROM onceward.processed_events")
		k.Exec("ALTER TABLE onceward.processed_events ADD UNIQUE (consumer_group, event_id)")
		require.Empty(k.T, k.Audit())
	})
}

func TestAuditOfDeadEvents(t *testing.T) {
	onBoth(t, func(k *kept) {
		now := time.Now()
		fine, discarded, late := claimstest.IDAt(k.Today), claimstest.IDAt(k.Today), claimstest.IDAt(k.Today.AddDate(0, 0, -30))
		k.Claim(fine, "billing", "d", now)
		k.Letter(fine, 1, "handler", "open")
		k.Claim(discarded, "billing", "d", now)
		k.Letter(discarded, 2, "handler", "discarded")
		for _, id := range byArrival(late, now) {
			k.Claim(id, "billing", "d", now)
		}
		k.Letter(late, 3, "handler", "open")
		original, replay := claimstest.IDAt(k.Today), claimstest.IDAt(k.Today)
		k.Claim(replay, "billing", "d", now)
		k.Claim(original, "billing", "p", now)
		k.Letter(original, 4, "handler", "open")
		k.Exec("UPDATE onceward.consumer_dead_letters SET claim_id = $1 WHERE kafka_offset = 4", replay)
		k.Letter(claimstest.IDAt(k.Today), 5, "late", "open") // was never claimed
		k.Exec("INSERT INTO onceward.dedup_horizon (dropped_before) VALUES ($1)", k.Today.AddDate(0, 0, -20))
		k.Letter(claimstest.IDAt(k.Today.AddDate(0, 0, -40)), 8, "handler", "open") // its claim went with its day
		require.Empty(k.T, k.Audit())

		lost, redriven, applied := claimstest.IDAt(k.Today), claimstest.IDAt(k.Today), claimstest.IDAt(k.Today)
		k.Claim(lost, "billing", "d", now)
		require.Equal(k.T, []string{"dead-claim billing 1 event shop:" + lost.String()}, k.Audit())
		k.Exec("DELETE FROM onceward.processed_events WHERE event_id = $1", lost)
		k.Claim(redriven, "billing", "d", now)
		k.Letter(redriven, 6, "handler", "redriven")
		k.Claim(applied, "billing", "p", now)
		k.Letter(applied, 7, "handler", "open")
		require.Equal(k.T, []string{
			"dead-claim billing 1 event shop:" + redriven.String(),
			"letter billing 1 letter orders/0@7 of event " + applied.String(),
		}, k.Audit())
	})
}

// What was claimed by arrival by the rules of a class is right for as long as the
// claim is there, whatever has become of the class.
func TestAuditKnowsClaimsByArrivalOfARetiredClass(t *testing.T) {
	onBoth(t, func(k *kept) {
		now, late := time.Now(), claimstest.IDAt(k.Today.AddDate(0, 0, -7))
		for _, id := range byArrival(late, now) {
			k.Claim(id, "billing", "d", now)
		}
		k.Letter(late, 1, "handler", "open")
		require.Empty(k.T, k.Audit())
		k.Exec("UPDATE onceward.dedup_windows SET retired_at = clock_timestamp()")
		require.Empty(k.T, k.Audit())
	})
}

// On a big table an audit reads the end of each partition, whatever its size.
func TestAuditIsBounded(t *testing.T) {
	onBoth(t, func(k *kept) {
		leaf := partition.OfDay("processed_events", k.Today)
		k.Exec(`INSERT INTO onceward.processed_events (event_id, consumer_group, event_type, namespace, fingerprint, outcome)
			SELECT (left($1::text, 13) || '-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'billing', 'Paid', 'shop', '\x00', 'p' FROM generate_series(1, 60000) n`, leaf.Lower)
		k.Exec("VACUUM onceward.processed_events")
		var plan strings.Builder
		rows, err := k.Admin.Query(k.T.Context(), "EXPLAIN (ANALYZE, BUFFERS) SELECT event_id FROM onceward.processed_events WHERE "+audit.Tail(leaf, 8192*1000))
		require.NoError(k.T, err)
		for rows.Next() {
			var line string
			require.NoError(k.T, rows.Scan(&line))
			plan.WriteString(line + "\n")
		}
		require.NoError(k.T, rows.Err())
		require.Contains(k.T, plan.String(), "Tid Range Scan on "+leaf.Name)
		require.Empty(k.T, k.Audit())
	})
}
