//go:build e2e

package consumer_test

import (
	osexec "os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/migrations"
)

// cured is what audit prints at a DEFAULT partition.
func (k *kept) cured() (printed string) {
	k.t.Helper()
	report, err := consumer.Audit(k.t.Context(), k.dial(migrations.RoleConsumer), consumer.AuditConfig{})
	require.ErrorIs(k.t, err, consumer.ErrDefaultPartition)
	printed = regexp.MustCompile(`(?s)DO \$onceward_*\$ .* END \$onceward_*\$;`).FindString(report.Findings[0].Do)
	require.NotEmpty(k.t, printed, report.Findings[0].Do)
	return printed
}

// psql runs a script as an operator's psql may be set to, and returns what it says.
func (k *kept) psql(script string, flags ...string) string {
	k.t.Helper()
	cmd := osexec.CommandContext(k.t.Context(), "psql", append([]string{"-X", "-v", "ON_ERROR_ROLLBACK=on", "-d", k.admin.Config().ConnString()}, flags...)...)
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	if len(flags) == 0 {
		require.NoError(k.t, err, string(out))
	}
	return string(out)
}

// What is printed for a DEFAULT partition is done as a whole or not at all, whatever
// a session does about errors: when a claim came meanwhile whose day nothing makes.
func TestACureIsDoneAsAWhole(t *testing.T) {
	if _, err := osexec.LookPath("psql"); err != nil {
		t.Skipf("psql is not installed: %v", err)
	}
	onBoth(t, func(k *kept) {
		k.exec("CREATE TABLE onceward.rest PARTITION OF onceward.processed_events DEFAULT")
		k.exec("ALTER TABLE onceward.rest OWNER TO onceward_consumer_maintainer")
		for _, n := range []int{-7, -5} {
			k.exec("DROP TABLE onceward." + partition.OfDay("processed_events", k.today.AddDate(0, 0, n)).Name)
		}
		count := func() string { return k.text("SELECT count(*)::text FROM onceward.processed_events") }
		k.claim(idAt(k.today.AddDate(0, 0, -5)), "billing", "p", time.Now())
		printed := k.cured()
		k.claim(idAt(k.today.AddDate(0, 0, -7)), "billing", "p", time.Now())
		for _, flags := range [][]string{{"-f", "-"}, {"-c", printed}} {
			require.Contains(k.t, k.psql(printed, flags...), "no partition of relation", flags[0])
			require.Equal(k.t, "2", count(), flags[0])
			require.True(k.t, k.exists("rest"), flags[0])
		}
		k.psql(k.cured())
		require.Equal(k.t, "2", count())
		require.False(k.t, k.exists("rest"))
		require.Empty(k.t, k.audit())
	})
}

// A session goes on as the role that it had, whatever became of the cure.
func TestACureLeavesTheRoleOfItsSession(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.exec("CREATE TABLE onceward.rest PARTITION OF onceward.processed_events DEFAULT")
		k.exec("ALTER TABLE onceward.rest OWNER TO onceward_consumer_maintainer")
		for _, n := range []int{-7, -5} {
			k.exec("DROP TABLE onceward." + partition.OfDay("processed_events", k.today.AddDate(0, 0, n)).Name)
		}
		k.claim(idAt(k.today.AddDate(0, 0, -5)), "billing", "p", time.Now())
		fails := k.cured()
		k.claim(idAt(k.today.AddDate(0, 0, -7)), "billing", "p", time.Now())
		conn, err := k.admin.Acquire(k.t.Context())
		require.NoError(k.t, err)
		defer conn.Release()
		role := func() (name string) {
			require.NoError(k.t, conn.QueryRow(k.t.Context(), "SELECT current_user").Scan(&name))
			return name
		}
		_, err = conn.Exec(k.t.Context(), "SET ROLE onceward_consumer_maintainer")
		require.NoError(k.t, err)
		_, err = conn.Exec(k.t.Context(), fails)
		require.ErrorContains(k.t, err, "no partition of relation")
		require.Equal(k.t, "onceward_consumer_maintainer", role())
		tx, err := conn.Begin(k.t.Context())
		require.NoError(k.t, err)
		_, err = tx.Exec(k.t.Context(), k.cured())
		require.NoError(k.t, err)
		require.Equal(k.t, "onceward_consumer_maintainer", role(), "also in its transaction")
		require.NoError(k.t, tx.Commit(k.t.Context()))
		require.Equal(k.t, "onceward_consumer_maintainer", role())
		_, err = conn.Exec(k.t.Context(), "RESET ROLE")
		require.NoError(k.t, err)
		require.Empty(k.t, k.audit())
	})
}

// A DEFAULT partition that somebody attached has its columns in an order of its own.
func TestACureNamesItsColumns(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.exec("DROP TABLE onceward." + partition.OfDay("processed_events", k.today.AddDate(0, 0, -5)).Name)
		k.exec(`CREATE TABLE onceward."the$onceward$Rest" (event_id uuid NOT NULL, event_type text NOT NULL, namespace text NOT NULL, consumer_group text NOT NULL,
			fingerprint bytea NOT NULL, outcome "char" NOT NULL CONSTRAINT processed_events_outcome_check CHECK (outcome IN ('p', 'd')), result jsonb, processed_at timestamptz NOT NULL)`)
		k.exec(`ALTER TABLE onceward.processed_events ATTACH PARTITION onceward."the$onceward$Rest" DEFAULT`)
		id := idAt(k.today.AddDate(0, 0, -5))
		k.claim(id, "billing", "p", time.Now())
		k.exec(k.cured())
		require.Equal(k.t, "billing Paid shop p", k.text("SELECT concat_ws(' ', consumer_group, event_type, namespace, outcome) FROM onceward.processed_events WHERE event_id = $1", id))
	})
}

// Where the day says that an event was given up, and the DEFAULT partition that it was
// applied, it was: a redrive of its letter must find that. Of another event with the
// key nothing is said.
func TestACureKnowsWhatWasApplied(t *testing.T) {
	onBoth(t, func(k *kept) {
		at := k.today.AddDate(0, 0, -3)
		day := "onceward." + partition.OfDay("processed_events", at).Name
		redriven, applied, other := idAt(at), idAt(at), idAt(at)
		k.claim(redriven, "billing", "d", time.Now())
		k.claim(applied, "billing", "p", time.Now())
		k.claim(other, "billing", "d", time.Now())
		k.exec("ALTER TABLE onceward.processed_events DETACH PARTITION " + day)
		k.exec("CREATE TABLE onceward.rest PARTITION OF onceward.processed_events DEFAULT")
		k.claim(redriven, "billing", "p", time.Now())
		k.exec(`UPDATE onceward.rest SET result = '{"n": 1}', processed_at = '2026-01-01'`)
		k.claim(applied, "billing", "d", time.Now())
		k.claim(other, "billing", "p", time.Now())
		k.exec(`UPDATE onceward.rest SET fingerprint = '\x01' WHERE event_id = $1`, other)
		k.exec(k.cured())
		for id, want := range map[uuid.UUID]string{redriven: `p {"n": 1} 2026`, applied: "p", other: "d"} {
			require.Equal(k.t, want, k.text(`SELECT concat_ws(' ', outcome, result, CASE WHEN result IS NOT NULL THEN extract(year FROM processed_at) END)
				FROM onceward.processed_events WHERE event_id = $1 AND fingerprint = '\x00'`, id))
		}
	})
}

// A floor below all partitions, too, is no reason to fail beside a DEFAULT partition.
func TestAuditOfAFloorBesideADefaultPartition(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.exec("UPDATE onceward.dedup_windows SET floor = $1", k.today.AddDate(0, 0, -10))
		k.exec("CREATE TABLE onceward.rest PARTITION OF onceward.processed_events DEFAULT")
		report, err := consumer.Audit(k.t.Context(), k.conn, consumer.AuditConfig{})
		require.ErrorIs(k.t, err, consumer.ErrDefaultPartition)
		f := report.Findings[1]
		require.Equal(k.t, "floor", f.Check)
		require.Contains(k.t, f.What, "only the DEFAULT partition takes events of these times")
		require.NotContains(k.t, f.What, "fail")
		require.Contains(k.t, f.Do, "do what default-partition says")
	})
}

// Who drops a day loses its claims, and audit says so before retention makes it anew.
func TestAuditOfADayThatSomebodyDropped(t *testing.T) {
	onBoth(t, func(k *kept) {
		day := partition.OfDay("processed_events", k.today.AddDate(0, 0, -3))
		id := idAt(k.today.AddDate(0, 0, -3))
		k.claim(id, "billing", "p", time.Now())
		claims := func() string {
			return k.text("SELECT count(*)::text FROM onceward.processed_events WHERE event_id = $1", id)
		}
		k.exec("ALTER TABLE onceward.processed_events DETACH PARTITION onceward." + day.Name)
		k.exec("ALTER TABLE onceward." + day.Name + " RENAME TO backup")
		hole := func() {
			report, err := consumer.Audit(k.t.Context(), k.conn, consumer.AuditConfig{})
			require.NoError(k.t, err)
			require.Equal(k.t, "hole", report.Findings[0].Check)
			require.Contains(k.t, report.Findings[0].Do, "if somebody dropped it, only a backup has its claims: restore and attach it before "+
				"`outboxctl partitions maintain --side consumer` makes it empty, and copies of its events are applied again; if it was never there, that makes it")
		}
		hole()
		require.Equal(k.t, []string{day.Name}, k.maintain().Made)
		require.Empty(k.t, k.audit())
		require.Equal(k.t, "0", claims())

		k.exec("DROP TABLE onceward." + day.Name)
		hole()
		k.exec("ALTER TABLE onceward.backup RENAME TO " + day.Name)
		k.exec(day.Attach("onceward.processed_events"))
		require.Empty(k.t, k.maintain().Made)
		require.Empty(k.t, k.audit())
		require.Equal(k.t, "1", claims())
	})
}

// What has a needed day's name and is another's, or is no partition at all, keeps a
// DEFAULT partition from going no more than a day of the owner; it wants a superuser.
func TestACureOfWhatIsAnothers(t *testing.T) {
	onBoth(t, func(k *kept) {
		var days []string
		for n := range 4 {
			at := k.today.AddDate(0, 0, n-6)
			days = append(days, partition.OfDay("processed_events", at).Name)
			k.exec("ALTER TABLE onceward.processed_events DETACH PARTITION onceward." + days[n])
		}
		k.exec("ALTER TABLE onceward." + days[3] + " OWNER TO CURRENT_USER")
		k.exec("DROP TABLE onceward." + strings.Join(days[:3], ", onceward."))
		k.exec("CREATE VIEW onceward." + days[0] + " AS SELECT 1; CREATE TABLE onceward." + days[1] + " (id uuid); CREATE TYPE onceward." + days[2] + " AS (id uuid)")
		k.exec("CREATE TABLE onceward.rest PARTITION OF onceward.processed_events DEFAULT; ALTER TABLE onceward.rest OWNER TO onceward_owner")
		for n := range days {
			k.claim(idAt(k.today.AddDate(0, 0, n-6)), "billing", "p", time.Now())
		}
		report, err := consumer.Audit(k.t.Context(), k.conn, consumer.AuditConfig{})
		require.ErrorIs(k.t, err, consumer.ErrDefaultPartition)
		require.Contains(k.t, report.Findings[0].Do, "as a superuser, while the consumers wait: DO ")
		for _, f := range report.Findings {
			require.NotEqual(k.t, "detached "+days[1], f.Check+" "+f.Subject)
		}
		k.exec(k.cured())
		k.maintain()
		require.Empty(k.t, k.audit())
		require.Equal(k.t, "4", k.text("SELECT count(DISTINCT tableoid)::text FROM onceward.processed_events"))
		for _, day := range days[:3] {
			require.Equal(k.t, "t", k.text("SELECT (to_regclass($1) IS NOT NULL OR to_regtype($1) IS NOT NULL)::text::\"char\"::text", "onceward."+day+"_old"), day)
		}
	})
}

// What keeps a day from being made is renamed where it is none, and attached, as the
// table's owner's, where it is one; of another's, which only a superuser can drop, each says so.
func TestCuresOfADayThatIsAnothers(t *testing.T) {
	onBoth(t, func(k *kept) {
		run := func(pattern, text string) {
			k.t.Helper()
			found := regexp.MustCompile(`as a superuser: ` + pattern).FindStringSubmatch(text)
			require.NotNil(k.t, found, text)
			k.exec(found[1])
		}
		k.exec("ALTER TABLE onceward." + k.leaf + " OWNER TO CURRENT_USER")
		audited, err := consumer.Audit(k.t.Context(), k.conn, consumer.AuditConfig{})
		require.NoError(k.t, err)
		require.Len(k.t, audited.Findings, 1)
		require.Equal(k.t, "owner "+k.leaf, audited.Findings[0].Check+" "+audited.Findings[0].Subject)
		_, err = k.run()
		require.ErrorContains(k.t, err, "drop: it belongs to ")
		require.NotContains(k.t, err.Error(), "permission denied")
		run(`(ALTER [^;]* OWNER TO onceward_owner);`, err.Error())
		k.became(consumer.LeafDropped, "")
		day := partition.OfDay("processed_events", k.today.AddDate(0, 0, -3)).Name
		k.exec("ALTER TABLE onceward.processed_events DETACH PARTITION onceward." + day)
		k.exec("ALTER TABLE onceward." + day + " RENAME TO kept")
		for _, odd := range []string{"CREATE VIEW %s AS SELECT 1", "CREATE TABLE %s (id uuid)", "CREATE TYPE %s AS (id uuid)"} {
			k.exec(strings.ReplaceAll(odd, "%s", "onceward."+day))
			report, err := k.run()
			require.Empty(k.t, find(report, day))
			require.ErrorIs(k.t, err, partition.ErrTaken)
			run(`(ALTER [^;]* RENAME TO "processed_events_[0-9]*_old[23]?";)`, err.Error())
			k.exec("ALTER TABLE onceward.kept RENAME TO " + day) // or retention would make it empty
			k.exec("ALTER TABLE onceward." + day + " RENAME TO kept")
		}
		k.exec("ALTER TABLE onceward.kept RENAME TO " + day)
		k.exec("ALTER TABLE onceward." + day + " OWNER TO CURRENT_USER")
		report, err := k.run()
		run(`(ALTER [^;]* OWNER TO onceward_owner; ALTER [^;]*;) then`, err.Error())
		k.exec("ALTER TABLE onceward.processed_events DETACH PARTITION onceward." + day)
		k.exec("ALTER TABLE onceward." + day + " OWNER TO CURRENT_USER")
		run(`(ALTER [^;]* OWNER TO onceward_owner; ALTER .*) or drop it`, strings.ReplaceAll(find(report, day).Why, "),", ""))
		require.Empty(k.t, k.audit())

		k.exec("ALTER TABLE onceward." + day + " OWNER TO CURRENT_USER")
		audited, err = consumer.Audit(k.t.Context(), k.conn, consumer.AuditConfig{})
		require.NoError(k.t, err)
		run(`(ALTER .*;)`, audited.Findings[0].Do)
		require.Empty(k.t, k.audit())
	})
}

// A DEFAULT partition with rows of more days than one statement can make hides nothing,
// and goes by two.
func TestACureOfManyDaysGoesByParts(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.exec("CREATE TABLE onceward.rest PARTITION OF onceward.processed_events DEFAULT; ALTER TABLE onceward.rest OWNER TO onceward_owner")
		const days = 401
		for n := range days {
			k.claim(idAt(k.today.AddDate(0, 0, 100+n)), "billing", "p", time.Now())
		}
		k.fence(idAt(k.today), "PENDING", 2*time.Hour)
		report, err := consumer.Audit(k.t.Context(), k.conn, consumer.AuditConfig{})
		require.ErrorIs(k.t, err, consumer.ErrDefaultPartition)
		require.Equal(k.t, "default-partition onceward.rest", report.Findings[0].Check+" "+report.Findings[0].Subject)
		require.Contains(k.t, report.Findings[0].Do, "its rows are of too many days for one statement: this moves those of the first 400")
		require.Equal(k.t, "fence", report.Findings[1].Check, "the other checks go on")
		for _, left := range []bool{true, false} {
			_, err = k.conn.Exec(k.t.Context(), k.cured())
			require.NoError(k.t, err)
			require.Equal(k.t, left, k.exists("rest"))
			require.Equal(k.t, "401", k.text("SELECT count(*)::text FROM onceward.processed_events"))
		}
		k.exec("DELETE FROM onceward.fences")
		k.maintain()
		require.Empty(k.t, k.audit())
	})
}
