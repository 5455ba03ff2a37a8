package migrations

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRolePrefix(t *testing.T) {
	for _, good := range []string{"onceward", "team-a.shop", "A_1", strings.Repeat("p", 40)} {
		roles, err := NewRoles(Outbox, good)
		require.NoError(t, err, good)
		require.LessOrEqual(t, len(roles.Name(RoleConsumerMaintainer)), 63)
	}
	for _, bad := range []string{"", "a b", `a"b`, "a'b", "a$b", "ü", "pg_x", strings.Repeat("p", 41)} {
		_, err := NewRoles(Consumer, bad)
		require.ErrorContains(t, err, "role prefix", bad)
	}
	_, err := NewRoles("producer", "onceward")
	require.ErrorContains(t, err, `side "producer"`)
}

func TestRolesAreQuoted(t *testing.T) {
	for _, side := range []Side{Outbox, Consumer} {
		roles, err := NewRoles(side, "Team-a")
		require.NoError(t, err)
		for _, sql := range append(roles.SQL(), roles.Logins()...) {
			rest := strings.NewReplacer(`"Team-a_`, "", `'Team-a_`, "", "WARNING 'roles Team-a_*", "").Replace(sql)
			require.NotContains(t, rest, "Team-a", "a name stands unquoted in: %s", sql)
			require.NotContains(t, sql, " SUPERUSER")
		}
	}
}

// The writer's columns are all but those that the database decides on.
func TestWriterColumnsAreTheContracts(t *testing.T) {
	all, err := Outbox.steps()
	require.NoError(t, err)
	_, table, _ := strings.Cut(all[0].up, "CREATE TABLE onceward.outbox (")
	table, _, _ = strings.Cut(table, "PRIMARY KEY")
	var columns []string
	for _, line := range strings.Split(table, "\n")[1:] {
		if fields := strings.Fields(line); len(fields) > 0 {
			columns = append(columns, fields[0])
		}
	}
	require.ElementsMatch(t, columns, append(strings.Split(eventColumns, ", "), "created_at", "tx_id", "seq"))
}

func TestProducersAreChecked(t *testing.T) {
	roles, err := NewRoles(Outbox, "onceward")
	require.NoError(t, err)
	for _, good := range []string{"shop", "team-a.Shop", strings.Repeat("p", 47)} {
		p, err := roles.Producer(good, "shop")
		require.NoError(t, err, good)
		for _, sql := range append(append(p.SQL(), p.RemoveSQL()...), p.Logins()...) {
			require.NotContains(t, sql, "%!", "a verb of the template lacks its argument")
		}
	}
	for _, bad := range []string{"", "a b", `a"b`, "a'b", strings.Repeat("p", 48), "onceward_writer", "onceward_relay"} {
		_, err := roles.Producer(bad, "shop")
		require.ErrorContains(t, err, "want 1 to 47", bad)
	}
	_, err = roles.Producer("shop", "Shop's")
	require.ErrorContains(t, err, "namespace")
	consumer, err := NewRoles(Consumer, "onceward")
	require.NoError(t, err)
	_, err = consumer.Producer("shop", "shop")
	require.ErrorContains(t, err, "only the outbox side")
}
