//go:build e2e

package consumer_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/migrations"
)

// audit returns, of each finding, check, group, count and subject, found with the
// rights of a consumer.
func (k *kept) audit() []string {
	k.t.Helper()
	report, err := consumer.Audit(k.t.Context(), k.dial(migrations.RoleConsumer), consumer.AuditConfig{Group: "billing"})
	require.NoError(k.t, err)
	require.Empty(k.t, report.Unfinished)
	var out []string
	for _, f := range report.Findings {
		require.NotEmpty(k.t, f.What)
		require.NotEmpty(k.t, f.Do)
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s %d %s", f.Check, f.Group, f.Count, f.Subject)))
	}
	return out
}

func TestAuditFindsNothingInASoundDatabase(t *testing.T) {
	onBoth(t, func(k *kept) {
		old := idAt(k.today.AddDate(0, 0, -8))
		k.claim(old, "billing", "p", time.Now().Add(-8*24*time.Hour))
		k.claim(idAt(k.today), "billing", "p", time.Now())
		require.Empty(k.t, k.audit())
		k.maintain()
		require.Empty(k.t, k.audit())
		require.False(k.t, k.exists(k.leaf))

		// Claims from before a floor was raised stay until their partition goes.
		k.claim(idAt(k.today.AddDate(0, 0, -7)), "billing", "p", time.Now())
		k.exec("UPDATE onceward.dedup_windows SET floor = $1, raised_at = clock_timestamp()", k.today.AddDate(0, 0, -3))
		require.Empty(k.t, k.audit())

		pool, err := pgxpool.NewWithConfig(k.t.Context(), k.as(migrations.RoleConsumer))
		require.NoError(k.t, err)
		defer pool.Close()
		p, err := consumer.New(k.t.Context(), consumer.Config{Group: "billing", DB: pool})
		require.NoError(k.t, err)
		report, err := p.Audit(k.t.Context())
		require.NoError(k.t, err)
		require.Empty(k.t, report)
	})
}

func TestAuditFailsLoudlyAtADefaultPartition(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.exec("CREATE TABLE onceward.processed_events_rest PARTITION OF onceward.processed_events DEFAULT")
		k.fence(idAt(k.today), "PENDING", 2*time.Hour)
		report, err := consumer.Audit(k.t.Context(), k.dial(migrations.RoleConsumer), consumer.AuditConfig{})
		require.ErrorIs(k.t, err, consumer.ErrDefaultPartition)
		require.Equal(k.t, "default-partition onceward.processed_events_rest", report.Findings[0].Check+" "+report.Findings[0].Subject)
		require.Equal(k.t, "fence", report.Findings[1].Check, "the other checks go on")
		require.Len(k.t, report.Unfinished, 3)
	})
}

// A DEFAULT partition hides a day that somebody detached. What is printed brings both
// back, with the claims that were made meanwhile; what nobody needs any more goes.
func TestADefaultPartitionIsTakenAway(t *testing.T) {
	onBoth(t, func(k *kept) {
		detached, dropped := partition.OfDay("processed_events", k.today.AddDate(0, 0, -3)).Name, partition.OfDay("processed_events", k.today.AddDate(0, 0, -5)).Name
		before, both, made, gone := idAt(k.today.AddDate(0, 0, -3)), idAt(k.today.AddDate(0, 0, -3)), idAt(k.today.AddDate(0, 0, -5)), idAt(k.today.AddDate(0, 0, -20))
		k.claim(before, "billing", "d", time.Now())
		k.claim(both, "billing", "p", time.Now())
		k.letter(before, 1, "handler", "open")
		k.exec("ALTER TABLE onceward.processed_events DETACH PARTITION onceward." + detached)
		k.exec("DROP TABLE onceward." + dropped)
		k.exec(`CREATE TABLE onceward."the Rest" PARTITION OF onceward.processed_events DEFAULT`)
		k.exec(`ALTER TABLE onceward."the Rest" OWNER TO onceward_consumer_maintainer`)
		for _, id := range []uuid.UUID{both, made, gone} {
			k.claim(id, "billing", "p", time.Now())
		}
		report, err := consumer.Audit(k.t.Context(), k.dial(migrations.RoleConsumer), consumer.AuditConfig{})
		require.ErrorIs(k.t, err, consumer.ErrDefaultPartition)
		var found []string
		for _, f := range report.Findings {
			found = append(found, f.Check+" "+f.Subject)
		}
		require.Equal(k.t, []string{
			`default-partition onceward."the Rest"`, "hole " + k.date(-5) + "T00:00:00Z to " + k.date(-4) + "T00:00:00Z",
			"hole " + k.date(-3) + "T00:00:00Z to " + k.date(-2) + "T00:00:00Z", "detached " + detached,
		}, found)
		require.Contains(k.t, report.Unfinished, "letter: not looked at, because of the DEFAULT partition")
		for _, f := range report.Findings[1:] {
			require.Contains(k.t, f.Do, "do what default-partition says")
		}
		printed := k.cured()
		_, err = k.conn.Exec(k.t.Context(), printed)
		require.NoError(k.t, err, printed)
		k.maintain()
		require.Empty(k.t, k.audit())
		for id, want := range map[uuid.UUID]string{before: detached + " d", both: detached + " p", made: dropped + " p"} {
			require.Equal(k.t, "onceward."+want, k.text("SELECT concat_ws(' ', tableoid::regclass, outcome) FROM onceward.processed_events WHERE event_id = $1", id))
		}
		require.Equal(k.t, "0", k.text("SELECT count(*)::text FROM onceward.processed_events WHERE event_id = $1", gone))
		require.Equal(k.t, "1", k.text("SELECT count(DISTINCT tableowner)::text FROM pg_tables WHERE schemaname = 'onceward'"))
	})
}

// What another session keeps an audit from reading is told, and so is each check that
// would have judged by it.
func TestAuditSaysWhatItDidNotLookAt(t *testing.T) {
	k := newKept(t, "15")
	k.claim(idAt(k.today), "billing", "d", time.Now())
	tx, err := k.admin.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = tx.Exec(t.Context(), "LOCK TABLE onceward."+k.leaf+" IN ACCESS EXCLUSIVE MODE")
	require.NoError(t, err)
	report, err := consumer.Audit(t.Context(), k.dial(migrations.RoleConsumer), consumer.AuditConfig{}.Impatient(500*time.Millisecond))
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
		detached := partition.OfDay("processed_events", k.today.AddDate(0, 0, -3)).Name
		hidden, seen := idAt(k.today.AddDate(0, 0, -3)), idAt(k.today)
		k.claim(hidden, "billing", "d", time.Now())
		k.letter(hidden, 1, "handler", "open")
		k.letter(seen, 2, "handler", "open")
		for _, sql := range []string{"ALTER TABLE onceward.processed_events DETACH PARTITION onceward.", "DROP TABLE onceward."} {
			k.exec(sql + detached)
			report, err := consumer.Audit(k.t.Context(), k.dial(migrations.RoleConsumer), consumer.AuditConfig{})
			require.NoError(k.t, err)
			require.Equal(k.t, []string{"letter: 1 letters were not looked at, the first letter orders/0@1 of event " + hidden.String() +
				": their claims are of days that are not attached, see hole and detached"}, report.Unfinished)
			last := report.Findings[len(report.Findings)-1]
			require.Equal(k.t, "letter letter orders/0@2 of event "+seen.String()+" 1", fmt.Sprint(last.Check, " ", last.Subject, " ", last.Count))
		}
	})
}

func TestAuditOfTheTable(t *testing.T) {
	onBoth(t, func(k *kept) {
		young := partition.OfDay("processed_events", k.today.AddDate(0, 0, -3)).Name
		k.exec("ALTER TABLE onceward.processed_events DETACH PARTITION onceward." + young)
		k.exec("INSERT INTO onceward.dedup_horizon (dropped_before) VALUES ($1)", k.today.AddDate(0, 0, -5))
		k.exec("UPDATE onceward.dedup_windows SET floor = $1", k.today.AddDate(0, 0, -10))
		k.window("stock", "*", week, -20)
		k.fence(idAt(k.today), "PENDING", 2*time.Hour)
		k.fence(idAt(k.today), "PENDING", 3*time.Hour)
		k.fence(idAt(k.today), "PENDING", time.Minute)
		require.Equal(k.t, []string{
			"hole  1 " + k.date(-3) + "T00:00:00Z to " + k.date(-2) + "T00:00:00Z",
			"detached  1 " + young,
			`floor billing 1 class "*", floor ` + k.date(-10) + "T00:00:00Z",
			`horizon billing 1 class "*", floor ` + k.date(-10) + "T00:00:00Z",
			"fence billing 2 since " + time.Now().Add(-3*time.Hour).UTC().Format("2006-01-02T15:04"),
		}, cutSeconds(k.audit()))
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
		stale, stuck, expired, gone := idAt(k.today), idAt(k.today), idAt(k.today), idAt(k.today)
		for _, id := range []uuid.UUID{stale, stuck, expired, gone} {
			k.fence(id, "PENDING", 2*time.Hour)
		}
		k.exec("UPDATE onceward.fences SET provider_key_until = now() - interval '1 minute' WHERE event_id = ANY ($1)", []uuid.UUID{stale, gone})
		k.exec("UPDATE onceward.fences SET stuck = 'the handler fences nothing' WHERE event_id = $1", stuck)
		k.exec("UPDATE onceward.fences SET expires_at = now() + interval '1 day' WHERE event_id = $1", gone)
		report, err := consumer.Audit(k.t.Context(), k.dial(migrations.RoleConsumer), consumer.AuditConfig{})
		require.NoError(k.t, err)
		require.Len(k.t, report.Findings, 1)
		require.Equal(k.t, 3, report.Findings[0].Count)
		require.Contains(k.t, report.Findings[0].What, "2 of which wait for an operator")
		require.Contains(k.t, report.Findings[0].Do, "`outboxctl fences list --stale`")
	})
}

func TestAuditOfClaimsBelowTheFloor(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.window("billing", "Order*", 24*time.Hour, -1)
		floor := k.today.AddDate(0, 0, -8)
		k.exec("UPDATE onceward.dedup_windows SET floor = $1, raised_at = now() - interval '1 day' WHERE class = '*'", floor.AddDate(0, 0, 2))
		now := time.Now()
		at := floor.Add(time.Hour)
		late, replay, claimed := idAt(at), idAt(at.Add(time.Minute)), idAt(at.Add(2*time.Minute))
		// A late event: by arrival, and under its own id.
		for _, id := range append(byArrival(late, now), late) {
			k.claim(id, "billing", "p", now)
		}
		// Claimed while the floor was lower.
		k.claim(claimed, "billing", "p", now.Add(-36*time.Hour))
		k.claim(idAt(floor.AddDate(0, 0, 2)), "billing", "p", now) // at the floor
		k.claim(replay, "stock", "p", now)                         // another group, without a window
		require.Empty(k.t, k.audit())

		k.claim(replay, "billing", "p", now)
		k.exec("INSERT INTO onceward.processed_events (event_id, consumer_group, event_type, namespace, fingerprint, outcome) VALUES ($1, 'billing', 'OrderPaid', 'shop', '\\x00', 'p')",
			idAt(at.Add(time.Hour)))
		found := k.audit()
		require.Len(k.t, found, 1)
		require.Contains(k.t, found[0], "below-floor billing 2 event ", "one of each class")
	})
}

// Versions of a program work beside one another that have different classes for an
// event type: a claim is right that any of them allowed when it was made, because none
// lets the partitions go that it needs.
func TestAuditKnowsClassesOfOtherVersions(t *testing.T) {
	onBoth(t, func(k *kept) {
		claim := func(eventType string, day int, at time.Time) {
			k.exec("INSERT INTO onceward.processed_events (event_id, consumer_group, event_type, namespace, fingerprint, outcome, processed_at) VALUES ($1, 'billing', $2, 'shop', '\\x00', 'p', $3)",
				idAt(k.today.AddDate(0, 0, day)), eventType, at)
		}
		k.window("billing", "Order*", 24*time.Hour, -1)
		k.window("billing", "Stock*", 6*24*time.Hour, -6)
		k.exec("UPDATE onceward.dedup_windows SET raised_at = now() - interval '1 day', floor = CASE class WHEN '*' THEN $1 ELSE floor END", k.today.AddDate(0, 0, -4))
		now := time.Now()
		claim("OrderPaid", -3, now)  // by a version that has the class * only
		claim("StockMoved", -5, now) // by the other one
		require.Empty(k.t, k.audit())
		k.exec("UPDATE onceward.dedup_windows SET retired_at = clock_timestamp() WHERE class = 'Stock*'")
		require.Empty(k.t, k.audit(), "it was claimed before the class was retired")
		k.exec("UPDATE onceward.dedup_windows SET retired_at = clock_timestamp() - interval '1 hour' WHERE class = 'Stock*'")
		found := k.audit()
		require.Len(k.t, found, 1)
		require.Contains(k.t, found[0], "of type StockMoved", "a retired class holds nothing back")
	})
}

// After a clock that was ahead is back, the floor may lie above the present, where
// events are claimed by arrival.
func TestAuditAllowsClaimsByArrival(t *testing.T) {
	k := newKept(t, "15")
	k.exec("UPDATE onceward.dedup_windows SET floor = $1", k.today.AddDate(0, 0, 1))
	for _, id := range byArrival(uuid.New(), time.Now()) {
		k.claim(id, "billing", "p", time.Now())
	}
	require.Empty(t, k.audit())
	k.claim(idAt(k.today), "billing", "p", time.Now())
	require.Len(t, k.audit(), 1)
}

func byArrival(id uuid.UUID, at time.Time) []uuid.UUID {
	ids := claims.IDs(id, week, at)
	return ids[:]
}

func TestAuditFindsAKeyThatIsThereTwice(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.exec("ALTER TABLE onceward.processed_events DROP CONSTRAINT processed_events_pkey")
		k.exec("CREATE INDEX ON onceward.processed_events (event_id, consumer_group)")
		k.exec("CREATE UNIQUE INDEX ON onceward.processed_events (event_id, consumer_group) WHERE outcome = 'd'")
		k.exec("CREATE UNIQUE INDEX ON onceward.processed_events (event_id, consumer_group, processed_at)")
		id := idAt(k.today)
		for range 2 {
			k.claim(id, "billing", "p", time.Now())
		}
		k.claim(id, "stock", "p", time.Now())
		require.Equal(k.t, []string{
			"key  73 " + k.leaf,
			"twice billing 1 event shop:" + id.String(),
		}, k.audit())
		report, err := consumer.Audit(k.t.Context(), k.dial(migrations.RoleConsumer), consumer.AuditConfig{})
		require.NoError(k.t, err)
		require.Equal(k.t, "compare the effects, then remove one of the claims", report.Findings[1].Do, "there is no key that REINDEX could check")
		k.exec("DELETE FROM onceward.processed_events")
		k.exec("ALTER TABLE onceward.processed_events ADD UNIQUE (consumer_group, event_id)")
		require.Empty(k.t, k.audit())
	})
}

func TestAuditOfDeadEvents(t *testing.T) {
	onBoth(t, func(k *kept) {
		now := time.Now()
		fine, discarded, late := idAt(k.today), idAt(k.today), idAt(k.today.AddDate(0, 0, -30))
		k.claim(fine, "billing", "d", now)
		k.letter(fine, 1, "handler", "open")
		k.claim(discarded, "billing", "d", now)
		k.letter(discarded, 2, "handler", "discarded")
		for _, id := range byArrival(late, now) {
			k.claim(id, "billing", "d", now)
		}
		k.letter(late, 3, "handler", "open")
		original, replay := idAt(k.today), idAt(k.today)
		k.claim(replay, "billing", "d", now)
		k.claim(original, "billing", "p", now)
		k.letter(original, 4, "handler", "open")
		k.exec("UPDATE onceward.consumer_dead_letters SET claim_id = $1 WHERE kafka_offset = 4", replay)
		k.letter(idAt(k.today), 5, "late", "open") // was never claimed
		k.exec("INSERT INTO onceward.dedup_horizon (dropped_before) VALUES ($1)", k.today.AddDate(0, 0, -20))
		k.letter(idAt(k.today.AddDate(0, 0, -40)), 8, "handler", "open") // its claim went with its day
		require.Empty(k.t, k.audit())

		lost, redriven, applied := idAt(k.today), idAt(k.today), idAt(k.today)
		k.claim(lost, "billing", "d", now)
		require.Equal(k.t, []string{"dead-claim billing 1 event shop:" + lost.String()}, k.audit())
		k.exec("DELETE FROM onceward.processed_events WHERE event_id = $1", lost)
		k.claim(redriven, "billing", "d", now)
		k.letter(redriven, 6, "handler", "redriven")
		k.claim(applied, "billing", "p", now)
		k.letter(applied, 7, "handler", "open")
		require.Equal(k.t, []string{
			"dead-claim billing 1 event shop:" + redriven.String(),
			"letter billing 1 letter orders/0@7 of event " + applied.String(),
		}, k.audit())
	})
}

// What was claimed by arrival by the rules of a class is right for as long as the
// claim is there, whatever has become of the class.
func TestAuditKnowsClaimsByArrivalOfARetiredClass(t *testing.T) {
	onBoth(t, func(k *kept) {
		now, late := time.Now(), idAt(k.today.AddDate(0, 0, -7))
		for _, id := range byArrival(late, now) {
			k.claim(id, "billing", "d", now)
		}
		k.letter(late, 1, "handler", "open")
		require.Empty(k.t, k.audit())
		k.exec("UPDATE onceward.dedup_windows SET retired_at = clock_timestamp()")
		require.Empty(k.t, k.audit())
	})
}

// On a big table an audit reads the end of each partition, whatever its size.
func TestAuditIsBounded(t *testing.T) {
	onBoth(t, func(k *kept) {
		leaf := partition.OfDay("processed_events", k.today)
		k.exec(`INSERT INTO onceward.processed_events (event_id, consumer_group, event_type, namespace, fingerprint, outcome)
			SELECT (left($1::text, 13) || '-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'billing', 'Paid', 'shop', '\x00', 'p' FROM generate_series(1, 60000) n`, leaf.Lower)
		k.exec("VACUUM onceward.processed_events")
		var plan strings.Builder
		rows, err := k.admin.Query(k.t.Context(), "EXPLAIN (ANALYZE, BUFFERS) SELECT event_id FROM onceward.processed_events WHERE "+consumer.Tail(leaf, 8192*1000))
		require.NoError(k.t, err)
		for rows.Next() {
			var line string
			require.NoError(k.t, rows.Scan(&line))
			plan.WriteString(line + "\n")
		}
		require.NoError(k.t, rows.Err())
		require.Contains(k.t, plan.String(), "Tid Range Scan on "+leaf.Name)
		require.Empty(k.t, k.audit())
	})
}
