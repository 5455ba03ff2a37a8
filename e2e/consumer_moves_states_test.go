//go:build e2e

package e2e

import (
	"fmt"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/audit"
)

// stray is the DEFAULT partition that somebody makes of the claims.
const stray = "onceward.stray"

// strayMade makes a DEFAULT partition of the claims, beside which all goes on, and an
// operator maintains what can be. It goes as the audit says.
func (m *mover) strayMade() bool {
	if m.strayIsThere() {
		return false
	}
	m.w.execute(`CREATE TABLE ` + stray + ` PARTITION OF onceward.processed_events DEFAULT`)
	m.publish(50)
	m.partitionsMaintained()
	m.due = append(m.due, later{time.Now().Add(time.Duration(m.rng.IntN(3000)) * time.Millisecond), m.strayTaken})
	return true
}

// strayIsThere: a snapshot that was restored may have brought it back.
func (m *mover) strayIsThere() bool {
	return scalar[bool](m.w, `SELECT to_regclass($1) IS NOT NULL`, stray)
}

// strayTaken does what the audit prints.
func (m *mover) strayTaken() {
	if !m.strayIsThere() {
		return
	}
	conn, err := m.w.pool.Acquire(m.t.Context())
	require.NoError(m.t, err)
	defer conn.Release()
	report, err := audit.Check(m.t.Context(), conn.Conn(), audit.Config{})
	require.ErrorIs(m.t, err, consumer.ErrDefaultPartition)
	printed := regexp.MustCompile(`(?s)DO \$onceward\$ .* END \$onceward\$;`).FindString(report.Findings[0].Do)
	require.NotEmpty(m.t, printed, report.Findings[0].Do)
	_, err = conn.Exec(m.t.Context(), printed, pgx.QueryExecModeSimpleProtocol)
	require.NoError(m.t, err, printed)
}

// floorLowered has somebody put a floor below where claims are kept while nobody works,
// and a maintainer raises it as the audit says; by more only the somebody does.
func (m *mover) floorLowered() bool {
	m.rest()
	class, was := m.class()
	m.w.execute(`UPDATE onceward.dedup_windows SET floor = LEAST(floor, (SELECT max(dropped_before) FROM onceward.dedup_horizon)) - interval '9 days' WHERE consumer_group = $1 AND class = $2`, m.group, class)
	raised := m.command(consumerMaintainerLogin, "windows", "raise", m.group, class)
	m.w.execute(`UPDATE onceward.dedup_windows SET floor = GREATEST(floor, $3) WHERE consumer_group = $1 AND class = $2`, m.group, class, was)
	if !raised {
		m.found = append(m.found, "a floor below where claims are kept was not raised: "+m.diary[len(m.diary)-1])
	}
	return raised
}

// lateSet has what comes late become letters, or effects again, of a class.
func (m *mover) lateSet() bool {
	class, _ := m.class()
	return m.command(operatorLogin, "windows", "set", m.group, class, "--late", []string{"process", "dead-letter"}[m.rng.IntN(2)])
}

// class is one of the first group's classes, and its floor.
func (m *mover) class() (class string, floor time.Time) {
	require.NoError(m.t, m.w.pool.QueryRow(m.t.Context(), `SELECT class, floor FROM onceward.dedup_windows
		WHERE consumer_group = $1 AND retired_at IS NULL AND keyed <> 'arrival' ORDER BY random() LIMIT 1`, m.group).Scan(&class, &floor))
	return class, floor
}

// someGroup is one of the groups.
func (m *mover) someGroup() string {
	if m.second != nil && m.rng.IntN(2) == 0 {
		return m.second.name
	}
	return m.group
}

// memberSettings are what somebody may give to the members' role: they refuse it, do not
// mind, or have to try again.
var memberSettings = [][2]string{
	{"client_encoding", "latin1"}, {"standard_conforming_strings", "off"}, {"bytea_output", "escape"}, {"timezone", "'Australia/Adelaide'"},
	{"datestyle", "'SQL, DMY'"}, {"intervalstyle", "sql_standard"}, {"default_transaction_isolation", "serializable"},
	{"default_transaction_read_only", "on"}, {"lock_timeout", "1"}, {"idle_in_transaction_session_timeout", "20"},
}

// settingChanged gives the members' role another setting for a while. Connections that
// have it end with it, but for those of another encoding: a processor leaves them by itself.
func (m *mover) settingChanged() bool {
	setting := memberSettings[m.rng.IntN(len(memberSettings))]
	role := "ALTER ROLE " + billingLogin + " IN DATABASE " + m.w.name
	m.w.execute(role + " SET " + setting[0] + " = " + setting[1])
	m.endConnections()
	m.note(time.Since(m.began), fmt.Sprint(setting))
	m.due = append(m.due, later{time.Now().Add(time.Duration(m.rng.IntN(4000)) * time.Millisecond), func() {
		m.w.execute(role + " RESET " + setting[0])
		if setting[0] != "client_encoding" {
			m.endConnections()
		}
	}})
	return true
}

// settingsTaken takes back what a snapshot that was restored may have brought.
func (m *mover) settingsTaken() {
	for _, setting := range memberSettings {
		m.w.execute("ALTER ROLE " + billingLogin + " IN DATABASE " + m.w.name + " RESET " + setting[0])
	}
}

// endConnections terminates all of the members'.
func (m *mover) endConnections() {
	m.terminated += scalar[int](m.w, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = $1 AND datname = current_database()`, billingLogin)
}
