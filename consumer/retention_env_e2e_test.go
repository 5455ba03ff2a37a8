//go:build e2e

package consumer_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
)

const week = 7 * 24 * time.Hour

// kept is a consumer's database whose partitions are looked after by a
// maintainer who is no superuser. It has one group, billing, with a window of a
// week and a floor eight days ago, which has finished all of yesterday.
type kept struct {
	t     *testing.T
	admin *pgxpool.Pool // the superuser: what the test arranges
	conn  *pgx.Conn     // the maintainer
	today time.Time
	leaf  string // the oldest partition, of eight days ago
}

// onBoth runs a test on both ends of what is supported.
func onBoth(t *testing.T, test func(*kept)) {
	t.Helper()
	for _, version := range []string{"15", "18"} {
		t.Run("PostgreSQL"+version, func(t *testing.T) { test(newKept(t, version)) })
	}
}

func newKept(t *testing.T, version string) *kept {
	t.Helper()
	k := &kept{t: t, admin: testdb.New(t, version), today: partition.Day(time.Now())}
	roles, err := migrations.NewRoles(migrations.Consumer, migrations.DefaultPrefix)
	require.NoError(t, err)
	require.NoError(t, roles.Apply(t.Context(), k.admin))
	for _, role := range []migrations.Role{migrations.RoleConsumer, migrations.RoleConsumerMaintainer, migrations.RoleOperator} {
		k.exec("ALTER ROLE " + roles.Name(role) + " LOGIN PASSWORD 'secret'")
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), k.as(migrations.RoleConsumerMaintainer))
	require.NoError(t, err)
	defer pool.Close()
	m, err := migrations.New(migrations.Config{Pool: pool, Side: migrations.Consumer})
	require.NoError(t, err)
	_, err = m.Up(t.Context())
	require.NoError(t, err)
	k.conn = k.dial(migrations.RoleConsumerMaintainer)
	k.leaf = k.day(-8)
	k.window("billing", "*", week, -8)
	k.progress("billing", 0, k.today)
	return k
}

func (k *kept) as(role migrations.Role) *pgxpool.Config {
	cfg := k.admin.Config()
	cfg.ConnConfig.User, cfg.ConnConfig.Password = migrations.DefaultPrefix+"_"+string(role), "secret"
	return cfg
}

func (k *kept) dial(role migrations.Role) *pgx.Conn {
	k.t.Helper()
	conn, err := pgx.ConnectConfig(k.t.Context(), k.as(role).ConnConfig)
	require.NoError(k.t, err)
	k.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func (k *kept) exec(sql string, args ...any) {
	k.t.Helper()
	_, err := k.admin.Exec(k.t.Context(), sql, args...)
	require.NoError(k.t, err, sql)
}

func (k *kept) text(sql string, args ...any) string {
	k.t.Helper()
	var s string
	require.NoError(k.t, k.admin.QueryRow(k.t.Context(), sql, args...).Scan(&s), sql)
	return s
}

// day makes the partition of a day, counted from today, and returns its name.
func (k *kept) day(n int) string {
	k.t.Helper()
	at := k.today.AddDate(0, 0, n)
	_, err := partition.Ensure(k.t.Context(), k.conn, claims.Table, "event_id", partition.Span{First: at, Last: at, Reopen: true})
	require.NoError(k.t, err)
	return partition.OfDay("processed_events", at).Name
}

// window registers a class whose floor is n days from today.
func (k *kept) window(group, class string, window time.Duration, n int) {
	k.t.Helper()
	k.exec("INSERT INTO onceward.dedup_windows (consumer_group, class, time_window, floor, registered_at, raised_at) VALUES ($1, $2, $3, $4, now() - interval '3 days', now() - interval '3 days')",
		group, class, window, k.today.AddDate(0, 0, n))
}

// progress says up to which event time a group has finished a topic partition.
func (k *kept) progress(group string, part int, finished any) {
	k.t.Helper()
	k.exec(`INSERT INTO onceward.progress (consumer_group, topic, kafka_partition, low_offset, high_offset, finished_time) VALUES ($1, 'orders', $2, 0, 9, $3)
		ON CONFLICT (consumer_group, topic, kafka_partition, topic_id) DO UPDATE SET finished_time = excluded.finished_time`, group, part, finished)
}

// idAt makes an id with the event time.
func idAt(at time.Time) uuid.UUID {
	id, first := uuid.New(), outbox.FirstID(at)
	copy(id[:6], first[:6])
	id[6] = 0x70 | id[6]&0x0f
	return id
}

const insertClaim = `INSERT INTO onceward.processed_events (event_id, consumer_group, event_type, namespace, fingerprint, outcome, processed_at)
	VALUES ($1, $2, 'Paid', 'shop', '\x00', $3, $4)`

// claim inserts a claim as it would be made at an instant.
func (k *kept) claim(id uuid.UUID, group, outcome string, at time.Time) {
	k.t.Helper()
	k.exec(insertClaim, id, group, outcome, at)
}

func (k *kept) fence(id uuid.UUID, status string, leaseEnded time.Duration) {
	k.t.Helper()
	k.exec(`INSERT INTO onceward.fences (event_id, consumer_group, name, status, owner, lease_until, request_fingerprint)
		VALUES ($1, 'billing', 'charge', $2, 'me', now() - $3::interval, '\x00')`, id, status, leaseEnded)
}

func (k *kept) letter(id uuid.UUID, offset int, reason, state string) {
	k.t.Helper()
	k.exec(`INSERT INTO onceward.consumer_dead_letters (consumer_group, topic, kafka_partition, kafka_offset, event_id, claim_id, event_type, record_headers, reason, error, state)
		VALUES ('billing', 'orders', 0, $1, $2, $2, 'Paid', '[]', $3, 'e', $4)`, offset, id, reason, state)
}

// run maintains once, with floors that count at once and short waits.
func (k *kept) run(change ...func(*consumer.MaintainConfig)) (consumer.MaintainReport, error) {
	k.t.Helper()
	cfg := consumer.MaintainConfig{LockTimeout: 200 * time.Millisecond}.With(nil, nil)
	for _, f := range change {
		f(&cfg)
	}
	return consumer.Maintain(k.t.Context(), k.conn, cfg)
}

func (k *kept) maintain(change ...func(*consumer.MaintainConfig)) consumer.MaintainReport {
	k.t.Helper()
	report, err := k.run(change...)
	require.NoError(k.t, err)
	return report
}

func find(report consumer.MaintainReport, name string) consumer.LeafReport {
	for _, l := range report.Leaves {
		if l.Name == name {
			return l
		}
	}
	return consumer.LeafReport{}
}

// became maintains once and checks what became of the oldest leaf.
func (k *kept) became(state consumer.LeafState, why string, change ...func(*consumer.MaintainConfig)) consumer.LeafReport {
	k.t.Helper()
	l := find(k.maintain(change...), k.leaf)
	require.Equal(k.t, state, l.State, l.Why)
	require.Contains(k.t, l.Why, why)
	return l
}

func (k *kept) exists(leaf string) bool {
	return k.text("SELECT (to_regclass('onceward.'||$1) IS NOT NULL)::text", leaf) == "true"
}

func (k *kept) floor(group string) string {
	return k.text("SELECT to_char(min(floor) AT TIME ZONE 'UTC', 'YYYY-MM-DD') FROM onceward.dedup_windows WHERE consumer_group = $1", group)
}

func (k *kept) date(n int) string { return k.today.AddDate(0, 0, n).Format(time.DateOnly) }

// kill ends the maintainer's session from outside, and waits until its locks are
// gone; the next run has another session.
func (k *kept) kill() {
	k.t.Helper()
	pid := k.conn.PgConn().PID()
	k.exec("SELECT pg_terminate_backend($1)", int32(pid))
	require.Eventually(k.t, func() bool {
		return k.text("SELECT count(*)::text FROM pg_stat_activity WHERE pid = $1", int32(pid)) == "0"
	}, 10*time.Second, 5*time.Millisecond)
	k.conn = k.dial(migrations.RoleConsumerMaintainer)
}

// crashAt kills the session at a point of the run.
func (k *kept) crashAt(point string) {
	k.t.Helper()
	_, err := k.run(func(c *consumer.MaintainConfig) {
		*c = c.With(nil, func(at string) {
			if at == point {
				k.kill()
			}
		})
	})
	require.Error(k.t, err, "killed after %s", point)
}

func dry(c *consumer.MaintainConfig) { c.DryRun = true }

func ahead(days int) func(*consumer.MaintainConfig) {
	return func(c *consumer.MaintainConfig) { c.Ahead = days }
}

// holding is an open transaction that has run a statement.
func (k *kept) holding(role migrations.Role, sql string, args ...any) pgx.Tx {
	k.t.Helper()
	tx, err := k.dial(role).Begin(k.t.Context())
	require.NoError(k.t, err)
	_, err = tx.Exec(k.t.Context(), sql, args...)
	require.NoError(k.t, err)
	return tx
}

// reader has read the table, so that a detach waits.
func (k *kept) reader() pgx.Tx {
	k.t.Helper()
	return k.holding(migrations.RoleConsumer, "SELECT FROM "+claims.Table)
}

func (k *kept) end(tx pgx.Tx) {
	k.t.Helper()
	require.NoError(k.t, tx.Rollback(k.t.Context()))
}

func (k *kept) detachPending() bool {
	return k.text("SELECT count(*)::text FROM pg_inherits WHERE inhdetachpending") == "1"
}
