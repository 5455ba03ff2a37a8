//go:build e2e

package audit_test

import (
	osexec "os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/audit"
	"github.com/onceward/onceward/consumer/internal/claimstest"
	"github.com/onceward/onceward/consumer/retention"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/migrations"
)

// cured is what audit prints at a DEFAULT partition.
func (k *kept) cured() (printed string) {
	k.T.Helper()
	report, err := audit.Check(k.T.Context(), k.Dial(migrations.RoleConsumer), audit.Config{})
	require.ErrorIs(k.T, err, consumer.ErrDefaultPartition)
	printed = regexp.MustCompile(`(?s)DO \$onceward_*\$ .* END \$onceward_*\$;`).FindString(report.Findings[0].Do)
	require.NotEmpty(k.T, printed, report.Findings[0].Do)
	return printed
}

// psql runs a script as an operator's psql may be set to, and returns what it says.
func (k *kept) psql(script string, flags ...string) string {
	k.T.Helper()
	cmd := osexec.CommandContext(k.T.Context(), "psql", append([]string{"-X", "-v", "ON_ERROR_ROLLBACK=on", "-d", k.Admin.Config().ConnString()}, flags...)...)
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	if len(flags) == 0 {
		require.NoError(k.T, err, string(out))
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
		k.Exec("CREATE TABLE onceward.rest PARTITION OF onceward.processed_events DEFAULT")
		k.Exec("ALTER TABLE onceward.rest OWNER TO onceward_consumer_maintainer")
		for _, n := range []int{-7, -5} {
			k.Exec("DROP TABLE onceward." + partition.OfDay("processed_events", k.Today.AddDate(0, 0, n)).Name)
		}
		count := func() string { return k.Text("SELECT count(*)::text FROM onceward.processed_events") }
		k.Claim(claimstest.IDAt(k.Today.AddDate(0, 0, -5)), "billing", "p", time.Now())
		printed := k.cured()
		k.Claim(claimstest.IDAt(k.Today.AddDate(0, 0, -7)), "billing", "p", time.Now())
		for _, flags := range [][]string{{"-f", "-"}, {"-c", printed}} {
			require.Contains(k.T, k.psql(printed, flags...), "no partition of relation", flags[0])
			require.Equal(k.T, "2", count(), flags[0])
			require.True(k.T, k.Exists("rest"), flags[0])
		}
		k.psql(k.cured())
		require.Equal(k.T, "2", count())
		require.False(k.T, k.Exists("rest"))
		require.Empty(k.T, k.Audit())
	})
}

// A session goes on as the role that it had, whatever became of the cure.
func TestACureLeavesTheRoleOfItsSession(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.Exec("CREATE TABLE onceward.rest PARTITION OF onceward.processed_events DEFAULT")
		k.Exec("ALTER TABLE onceward.rest OWNER TO onceward_consumer_maintainer")
		for _, n := range []int{-7, -5} {
			k.Exec("DROP TABLE onceward." + partition.OfDay("processed_events", k.Today.AddDate(0, 0, n)).Name)
		}
		k.Claim(claimstest.IDAt(k.Today.AddDate(0, 0, -5)), "billing", "p", time.Now())
		fails := k.cured()
		k.Claim(claimstest.IDAt(k.Today.AddDate(0, 0, -7)), "billing", "p", time.Now())
		conn, err := k.Admin.Acquire(k.T.Context())
		require.NoError(k.T, err)
		defer conn.Release()
		role := func() (name string) {
			require.NoError(k.T, conn.QueryRow(k.T.Context(), "SELECT current_user").Scan(&name))
			return name
		}
		_, err = conn.Exec(k.T.Context(), "SET ROLE onceward_consumer_maintainer")
		require.NoError(k.T, err)
		_, err = conn.Exec(k.T.Context(), fails)
		require.ErrorContains(k.T, err, "no partition of relation")
		require.Equal(k.T, "onceward_consumer_maintainer", role())
		tx, err := conn.Begin(k.T.Context())
		require.NoError(k.T, err)
		_, err = tx.Exec(k.T.Context(), k.cured())
		require.NoError(k.T, err)
		require.Equal(k.T, "onceward_consumer_maintainer", role(), "also in its transaction")
		require.NoError(k.T, tx.Commit(k.T.Context()))
		require.Equal(k.T, "onceward_consumer_maintainer", role())
		_, err = conn.Exec(k.T.Context(), "RESET ROLE")
		require.NoError(k.T, err)
		require.Empty(k.T, k.Audit())
	})
}

// A DEFAULT partition that somebody attached has its columns in an order of its own.
func TestACureNamesItsColumns(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.Exec("DROP TABLE onceward." + partition.OfDay("processed_events", k.Today.AddDate(0, 0, -5)).Name)
		k.Exec(`CREATE TABLE onceward."the$onceward$Rest" (event_id uuid NOT NULL, event_type text NOT NULL, namespace text NOT NULL, consumer_group text NOT NULL,
			fingerprint bytea NOT NULL, outcome "char" NOT NULL CONSTRAINT processed_events_outcome_check CHECK (outcome IN ('p', 'd')), result jsonb, processed_at timestamptz NOT NULL)`)
		k.Exec(`ALTER TABLE onceward.processed_events ATTACH PARTITION onceward."the$onceward$Rest" DEFAULT`)
		id := claimstest.IDAt(k.Today.AddDate(0, 0, -5))
		k.Claim(id, "billing", "p", time.Now())
		k.Exec(k.cured())
		require.Equal(k.T, "billing Paid shop p", k.Text("SELECT concat_ws(' ', consumer_group, event_type, namespace, outcome) FROM onceward.processed_events WHERE event_id = $1", id))
	})
}

// Where the day says that an event was given up, and the DEFAULT partition that it was
// applied, it was: a redrive of its letter must find that. Of another event with the
// key nothing is said.
func TestACureKnowsWhatWasApplied(t *testing.T) {
	onBoth(t, func(k *kept) {
		at := k.Today.AddDate(0, 0, -3)
		day := "onceward." + partition.OfDay("processed_events", at).Name
		redriven, applied, other := claimstest.IDAt(at), claimstest.IDAt(at), claimstest.IDAt(at)
		k.Claim(redriven, "billing", "d", time.Now())
		k.Claim(applied, "billing", "p", time.Now())
		k.Claim(other, "billing", "d", time.Now())
		k.Exec("ALTER TABLE onceward.processed_events DETACH PARTITION " + day)
		k.Exec("CREATE TABLE onceward.rest PARTITION OF onceward.processed_events DEFAULT")
		k.Claim(redriven, "billing", "p", time.Now())
		k.Exec(`UPDATE onceward.rest SET result = '{"n": 1}', processed_at = '2026-01-01'`)
		k.Claim(applied, "billing", "d", time.Now())
		k.Claim(other, "billing", "p", time.Now())
		k.Exec(`UPDATE onceward.rest SET fingerprint = '\x01' WHERE event_id = $1`, other)
		k.Exec(k.cured())
		for id, want := range map[uuid.UUID]string{redriven: `p {"n": 1} 2026`, applied: "p", other: "d"} {
			require.Equal(k.T, want, k.Text(`SELECT concat_ws(' ', outcome, result, CASE WHEN result IS NOT NULL THEN extract(year FROM processed_at) END)
				FROM onceward.processed_events WHERE event_id = $1 AND fingerprint = '\x00'`, id))
		}
	})
}

// A floor below all partitions, too, is no reason to fail beside a DEFAULT partition.
func TestAuditOfAFloorBesideADefaultPartition(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.Exec("UPDATE onceward.dedup_windows SET floor = $1", k.Today.AddDate(0, 0, -10))
		k.Exec("CREATE TABLE onceward.rest PARTITION OF onceward.processed_events DEFAULT")
		report, err := audit.Check(k.T.Context(), k.Conn, audit.Config{})
		require.ErrorIs(k.T, err, consumer.ErrDefaultPartition)
		f := report.Findings[1]
		require.Equal(k.T, "floor", f.Check)
		require.Contains(k.T, f.What, "only the DEFAULT partition takes events of these times")
		require.NotContains(k.T, f.What, "fail")
		require.Contains(k.T, f.Do, "do what default-partition says")
	})
}

// Who drops a day loses its claims, and audit says so before retention makes it anew.
func TestAuditOfADayThatSomebodyDropped(t *testing.T) {
	onBoth(t, func(k *kept) {
		day := partition.OfDay("processed_events", k.Today.AddDate(0, 0, -3))
		id := claimstest.IDAt(k.Today.AddDate(0, 0, -3))
		k.Claim(id, "billing", "p", time.Now())
		claims := func() string {
			return k.Text("SELECT count(*)::text FROM onceward.processed_events WHERE event_id = $1", id)
		}
		k.Exec("ALTER TABLE onceward.processed_events DETACH PARTITION onceward." + day.Name)
		k.Exec("ALTER TABLE onceward." + day.Name + " RENAME TO backup")
		hole := func() {
			report, err := audit.Check(k.T.Context(), k.Conn, audit.Config{})
			require.NoError(k.T, err)
			require.Equal(k.T, "hole", report.Findings[0].Check)
			require.Contains(k.T, report.Findings[0].Do, "if somebody dropped it, only a backup has its claims: restore and attach it before "+
				"`outboxctl partitions maintain --side consumer` makes it empty, and copies of its events are applied again; if it was never there, that makes it")
		}
		hole()
		require.Equal(k.T, []string{day.Name}, k.Maintain().Made)
		require.Empty(k.T, k.Audit())
		require.Equal(k.T, "0", claims())

		k.Exec("DROP TABLE onceward." + day.Name)
		hole()
		k.Exec("ALTER TABLE onceward.backup RENAME TO " + day.Name)
		k.Exec(day.Attach("onceward.processed_events"))
		require.Empty(k.T, k.Maintain().Made)
		require.Empty(k.T, k.Audit())
		require.Equal(k.T, "1", claims())
	})
}

// What has a needed day's name and is another's, or is no partition at all, keeps a
// DEFAULT partition from going no more than a day of the owner; it wants a superuser.
func TestACureOfWhatIsAnothers(t *testing.T) {
	onBoth(t, func(k *kept) {
		var days []string
		for n := range 4 {
			at := k.Today.AddDate(0, 0, n-6)
			days = append(days, partition.OfDay("processed_events", at).Name)
			k.Exec("ALTER TABLE onceward.processed_events DETACH PARTITION onceward." + days[n])
		}
		k.Exec("ALTER TABLE onceward." + days[3] + " OWNER TO CURRENT_USER")
		k.Exec("DROP TABLE onceward." + strings.Join(days[:3], ", onceward."))
		k.Exec("CREATE VIEW onceward." + days[0] + " AS SELECT 1; CREATE TABLE onceward." + days[1] + " (id uuid); CREATE TYPE onceward." + days[2] + " AS (id uuid)")
		k.Exec("CREATE TABLE onceward.rest PARTITION OF onceward.processed_events DEFAULT; ALTER TABLE onceward.rest OWNER TO onceward_owner")
		for n := range days {
			k.Claim(claimstest.IDAt(k.Today.AddDate(0, 0, n-6)), "billing", "p", time.Now())
		}
		report, err := audit.Check(k.T.Context(), k.Conn, audit.Config{})
		require.ErrorIs(k.T, err, consumer.ErrDefaultPartition)
		require.Contains(k.T, report.Findings[0].Do, "as a superuser, while the consumers wait: DO ")
		for _, f := range report.Findings {
			require.NotEqual(k.T, "detached "+days[1], f.Check+" "+f.Subject)
		}
		k.Exec(k.cured())
		k.Maintain()
		require.Empty(k.T, k.Audit())
		require.Equal(k.T, "4", k.Text("SELECT count(DISTINCT tableoid)::text FROM onceward.processed_events"))
		for _, day := range days[:3] {
			require.Equal(k.T, "t", k.Text("SELECT (to_regclass($1) IS NOT NULL OR to_regtype($1) IS NOT NULL)::text::\"char\"::text", "onceward."+day+"_old"), day)
		}
	})
}

// What keeps a day from being made is renamed where it is none, and attached, as the
// table's owner's, where it is one; of another's, which only a superuser can drop, each says so.
func TestCuresOfADayThatIsAnothers(t *testing.T) {
	onBoth(t, func(k *kept) {
		run := func(pattern, text string) {
			k.T.Helper()
			found := regexp.MustCompile("as a superuser: `?" + pattern).FindStringSubmatch(text)
			require.NotNil(k.T, found, text)
			k.Exec(found[1])
		}
		k.Exec("ALTER TABLE onceward." + k.Leaf + " OWNER TO CURRENT_USER")
		audited, err := audit.Check(k.T.Context(), k.Conn, audit.Config{})
		require.NoError(k.T, err)
		require.Len(k.T, audited.Findings, 1)
		require.Equal(k.T, "owner "+k.Leaf, audited.Findings[0].Check+" "+audited.Findings[0].Subject)
		_, err = k.Run()
		require.ErrorContains(k.T, err, "drop: it belongs to ")
		require.NotContains(k.T, err.Error(), "permission denied")
		run(`(ALTER [^;]* OWNER TO onceward_owner);`, err.Error())
		k.Became(retention.LeafDropped, "")
		day := partition.OfDay("processed_events", k.Today.AddDate(0, 0, -3)).Name
		k.Exec("ALTER TABLE onceward.processed_events DETACH PARTITION onceward." + day)
		k.Exec("ALTER TABLE onceward." + day + " RENAME TO kept")
		for _, odd := range []string{"CREATE VIEW %s AS SELECT 1", "CREATE TABLE %s (id uuid)", "CREATE TYPE %s AS (id uuid)"} {
			k.Exec(strings.ReplaceAll(odd, "%s", "onceward."+day))
			report, err := k.Run()
			require.Empty(k.T, claimstest.Find(report, day))
			require.ErrorIs(k.T, err, partition.ErrTaken)
			run(`(ALTER [^;]* RENAME TO "processed_events_[0-9]*_old[23]?";)`, err.Error())
			k.Exec("ALTER TABLE onceward.kept RENAME TO " + day) // or retention would make it empty
			k.Exec("ALTER TABLE onceward." + day + " RENAME TO kept")
		}
		k.Exec("ALTER TABLE onceward.kept RENAME TO " + day)
		k.Exec("ALTER TABLE onceward." + day + " OWNER TO CURRENT_USER")
		report, err := k.Run()
		run(`(ALTER [^;]* OWNER TO onceward_owner; ALTER [^;]*;).? then`, err.Error())
		k.Exec("ALTER TABLE onceward.processed_events DETACH PARTITION onceward." + day)
		k.Exec("ALTER TABLE onceward." + day + " OWNER TO CURRENT_USER")
		run(`(ALTER [^;]* OWNER TO onceward_owner; ALTER .*) or drop it`, strings.ReplaceAll(claimstest.Find(report, day).Why, "),", ""))
		require.Empty(k.T, k.Audit())

		k.Exec("ALTER TABLE onceward." + day + " OWNER TO CURRENT_USER")
		audited, err = audit.Check(k.T.Context(), k.Conn, audit.Config{})
		require.NoError(k.T, err)
		run(`(ALTER .*;)`, audited.Findings[0].Do)
		require.Empty(k.T, k.Audit())
	})
}

// A DEFAULT partition with rows of more days than one statement can make hides nothing,
// and goes by two.
func TestACureOfManyDaysGoesByParts(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.Exec("CREATE TABLE onceward.rest PARTITION OF onceward.processed_events DEFAULT; ALTER TABLE onceward.rest OWNER TO onceward_owner")
		const days = 401
		for n := range days {
			k.Claim(claimstest.IDAt(k.Today.AddDate(0, 0, 100+n)), "billing", "p", time.Now())
		}
		k.Fence(claimstest.IDAt(k.Today), "PENDING", 2*time.Hour)
		report, err := audit.Check(k.T.Context(), k.Conn, audit.Config{})
		require.ErrorIs(k.T, err, consumer.ErrDefaultPartition)
		require.Equal(k.T, "default-partition onceward.rest", report.Findings[0].Check+" "+report.Findings[0].Subject)
		require.Contains(k.T, report.Findings[0].Do, "its rows are of too many days for one statement: this moves those of the first 400")
		require.Equal(k.T, "fence", report.Findings[1].Check, "the other checks go on")
		for _, left := range []bool{true, false} {
			_, err = k.Conn.Exec(k.T.Context(), k.cured())
			require.NoError(k.T, err)
			require.Equal(k.T, left, k.Exists("rest"))
			require.Equal(k.T, "401", k.Text("SELECT count(*)::text FROM onceward.processed_events"))
		}
		k.Exec("DELETE FROM onceward.fences")
		k.Maintain()
		require.Empty(k.T, k.Audit())
	})
}
