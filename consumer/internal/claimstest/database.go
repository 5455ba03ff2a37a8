//go:build e2e

package claimstest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer/audit"
	"github.com/onceward/onceward/consumer/retention"
	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
)

// Week is how long the window of billing is.
const Week = 7 * 24 * time.Hour

// Database is a consumer's database whose partitions are looked after by a
// maintainer who is no superuser. It has one group, billing, with a window of a
// week and a floor eight days ago, which has finished all of yesterday.
type Database struct {
	T     *testing.T
	Admin *pgxpool.Pool // the superuser: what the test arranges
	Conn  *pgx.Conn     // the maintainer
	Today time.Time
	Leaf  string // the oldest partition, of eight days ago
}

// OnBoth runs a test on both ends of what is supported.
func OnBoth(t *testing.T, test func(*Database)) {
	t.Helper()
	for _, version := range []string{"15", "18"} {
		t.Run("PostgreSQL"+version, func(t *testing.T) { test(New(t, version)) })
	}
}

// New makes one on a version of PostgreSQL.
func New(t *testing.T, version string) *Database {
	t.Helper()
	k := &Database{T: t, Admin: testdb.New(t, version), Today: partition.Day(time.Now())}
	roles, err := migrations.NewRoles(migrations.Consumer, migrations.DefaultPrefix)
	require.NoError(t, err)
	require.NoError(t, roles.Apply(t.Context(), k.Admin))
	for _, role := range []migrations.Role{migrations.RoleConsumer, migrations.RoleConsumerMaintainer,
		migrations.RoleOperator} {
		k.Exec("ALTER ROLE " + roles.Name(role) + " LOGIN PASSWORD 'secret'")
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), k.As(migrations.RoleConsumerMaintainer))
	require.NoError(t, err)
	defer pool.Close()
	m, err := migrations.New(migrations.Config{Pool: pool, Side: migrations.Consumer})
	require.NoError(t, err)
	_, err = m.Up(t.Context())
	require.NoError(t, err)
	k.Conn = k.Dial(migrations.RoleConsumerMaintainer)
	k.Leaf = k.Day(-8)
	k.Window("billing", "*", Week, -8)
	k.Progress("billing", 0, k.Today)
	return k
}

// As is how a role connects.
func (k *Database) As(role migrations.Role) *pgxpool.Config {
	cfg := k.Admin.Config()
	cfg.ConnConfig.User, cfg.ConnConfig.Password = migrations.DefaultPrefix+"_"+string(role), "secret"
	return cfg
}

// Dial connects as a role, until the test ends.
func (k *Database) Dial(role migrations.Role) *pgx.Conn {
	k.T.Helper()
	conn, err := pgx.ConnectConfig(k.T.Context(), k.As(role).ConnConfig)
	require.NoError(k.T, err)
	k.T.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// Exec runs a statement of the superuser.
func (k *Database) Exec(sql string, args ...any) {
	k.T.Helper()
	_, err := k.Admin.Exec(k.T.Context(), sql, args...)
	require.NoError(k.T, err, sql)
}

// Text asks as the superuser.
func (k *Database) Text(sql string, args ...any) string {
	k.T.Helper()
	var s string
	require.NoError(k.T, k.Admin.QueryRow(k.T.Context(), sql, args...).Scan(&s), sql)
	return s
}

// Day makes the partition of a day, counted from today, and returns its name.
func (k *Database) Day(n int) string {
	k.T.Helper()
	at := k.Today.AddDate(0, 0, n)
	_, err := partition.Ensure(k.T.Context(), k.Conn, claims.Table, "event_id", partition.Span{First: at, Last: at, Reopen: true})
	require.NoError(k.T, err)
	return partition.OfDay("processed_events", at).Name
}

// Window registers a class whose floor is n days from today.
func (k *Database) Window(group, class string, window time.Duration, n int) {
	k.T.Helper()
	k.Exec(`INSERT INTO onceward.dedup_windows (consumer_group, class, time_window, floor, registered_at, raised_at)
		VALUES ($1, $2, $3, $4, now() - interval '3 days', now() - interval '3 days')`, group, class, window, k.Today.AddDate(0, 0, n))
}

// Progress says up to which event time a group has finished a topic partition.
func (k *Database) Progress(group string, part int, finished any) {
	k.T.Helper()
	k.Exec(`INSERT INTO onceward.progress (consumer_group, topic, kafka_partition, low_offset, high_offset, finished_time) VALUES ($1, 'orders', $2, 0, 9, $3)
		ON CONFLICT (consumer_group, topic, kafka_partition, topic_id) DO UPDATE SET finished_time = excluded.finished_time`, group, part, finished)
}

// IDAt makes an id with the event time.
func IDAt(at time.Time) uuid.UUID {
	id, first := uuid.New(), outbox.FirstID(at)
	copy(id[:6], first[:6])
	id[6] = 0x70 | id[6]&0x0f
	return id
}

// InsertClaim inserts a claim: its id, group, outcome and instant.
const InsertClaim = `INSERT INTO onceward.processed_events (event_id, consumer_group, event_type, namespace, fingerprint, outcome, processed_at)
	VALUES ($1, $2, 'Paid', 'shop', '\x00', $3, $4)`

// Claim inserts a claim as it would be made at an instant.
func (k *Database) Claim(id uuid.UUID, group, outcome string, at time.Time) {
	k.T.Helper()
	k.Exec(InsertClaim, id, group, outcome, at)
}

// Fence makes one of billing, whose lease ended so long ago.
func (k *Database) Fence(id uuid.UUID, status string, leaseEnded time.Duration) {
	k.T.Helper()
	k.Exec(`INSERT INTO onceward.fences (event_id, consumer_group, name, status, owner, lease_until, request_fingerprint)
		VALUES ($1, 'billing', 'charge', $2, 'me', now() - $3::interval, '\x00')`, id, status, leaseEnded)
}

// Letter makes a dead letter of billing.
func (k *Database) Letter(id uuid.UUID, offset int, reason, state string) {
	k.T.Helper()
	k.Exec(`INSERT INTO onceward.consumer_dead_letters (consumer_group, topic, kafka_partition, kafka_offset, event_id, claim_id, event_type, record_headers, reason, error, state)
		VALUES ('billing', 'orders', 0, $1, $2, $2, 'Paid', '[]', $3, 'e', $4)`, offset, id, reason, state)
}

// Run maintains once, with floors that count at once and short waits.
func (k *Database) Run(change ...func(*retention.Config)) (retention.Report, error) {
	k.T.Helper()
	cfg := retention.Config{LockTimeout: 200 * time.Millisecond}.With(nil, nil)
	for _, f := range change {
		f(&cfg)
	}
	return retention.Maintain(k.T.Context(), k.Conn, cfg)
}

// Maintain is Run, which must not fail.
func (k *Database) Maintain(change ...func(*retention.Config)) retention.Report {
	k.T.Helper()
	report, err := k.Run(change...)
	require.NoError(k.T, err)
	return report
}

// Exists reports whether there is a partition, attached or not.
func (k *Database) Exists(leaf string) bool {
	return k.Text("SELECT (to_regclass('onceward.'||$1) IS NOT NULL)::text", leaf) == "true"
}

// Floor returns the lowest one of a group.
func (k *Database) Floor(group string) string {
	return k.Text("SELECT to_char(min(floor) AT TIME ZONE 'UTC', 'YYYY-MM-DD') FROM onceward.dedup_windows WHERE consumer_group = $1", group)
}

// Date is a day, counted from today.
func (k *Database) Date(n int) string { return k.Today.AddDate(0, 0, n).Format(time.DateOnly) }

// Find returns what the report says of a partition.
func Find(report retention.Report, name string) retention.LeafReport {
	for _, l := range report.Leaves {
		if l.Name == name {
			return l
		}
	}
	return retention.LeafReport{}
}

// Became maintains once and checks what became of the oldest leaf.
func (k *Database) Became(state retention.LeafState, why string,
	change ...func(*retention.Config)) retention.LeafReport {
	k.T.Helper()
	l := Find(k.Maintain(change...), k.Leaf)
	require.Equal(k.T, state, l.State, l.Why)
	require.Contains(k.T, l.Why, why)
	return l
}

// Audit returns, of each finding, check, group, count and subject, found with the
// rights of a consumer.
func (k *Database) Audit() []string {
	k.T.Helper()
	report, err := audit.Check(k.T.Context(), k.Dial(migrations.RoleConsumer), audit.Config{Group: "billing"})
	require.NoError(k.T, err)
	require.Empty(k.T, report.Unfinished)
	var out []string
	for _, f := range report.Findings {
		require.NotEmpty(k.T, f.What)
		require.NotEmpty(k.T, f.Do)
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s %d %s", f.Check, f.Group, f.Count, f.Subject)))
	}
	return out
}
