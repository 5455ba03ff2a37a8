//go:build e2e

package e2e

import (
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
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
	report, err := consumer.Audit(m.t.Context(), conn.Conn(), consumer.AuditConfig{})
	require.ErrorIs(m.t, err, consumer.ErrDefaultPartition)
	printed := regexp.MustCompile(`(?s)DO \$onceward\$ .* END \$onceward\$;`).FindString(report.Findings[0].Do)
	require.NotEmpty(m.t, printed, report.Findings[0].Do)
	_, err = conn.Exec(m.t.Context(), printed, pgx.QueryExecModeSimpleProtocol)
	require.NoError(m.t, err, printed)
}

// someGroup is one of the groups.
func (m *mover) someGroup() string {
	if m.second != nil && m.rng.IntN(2) == 0 {
		return m.second.name
	}
	return m.group
}
