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
