//go:build e2e

package consumerprom_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/consumerprom"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

func TestMain(m *testing.M) { os.Exit(testdb.Main(m)) }

// backlog makes a database in which a letter is open, an event of a Func handler
// with a stuck effect too, and a row has expired.
func backlog(t *testing.T, c *consumerprom.Collector) *pgxpool.Pool {
	t.Helper()
	db := testdb.New(t, "15")
	m, err := migrations.New(migrations.Config{Pool: db, Side: migrations.Consumer})
	require.NoError(t, err)
	_, err = m.Up(t.Context())
	require.NoError(t, err)
	p, err := consumer.New(t.Context(), consumer.Config{Group: "billing", DB: db, Retry: consumer.Retry{MaxAttempts: 1}, Handled: c.Handled})
	require.NoError(t, err)
	r := consumer.NewRouter(p)
	r.Tx("Paid", func(context.Context, pgx.Tx, consumer.Event) error { return errors.New("never") })
	r.Func("Charge", func(ctx context.Context, ev consumer.Event) error {
		_, err := consumer.Fence(ctx, p, ev, consumer.Effect[int]{Name: "charge", Do: func(context.Context, consumer.Call) (int, error) { return 0, errors.New("provider is down") }})
		return err
	})
	for i, eventType := range []string{"Paid", "Charge"} {
		k, err := outbox.NewKey("shop")
		require.NoError(t, err)
		outcome, err := r.Handle(t.Context(), consumer.Event{Event: record.Event{Key: k, Type: eventType}, Source: consumer.Source{Topic: "orders", Offset: int64(i)}})
		require.NoError(t, err)
		require.Equal(t, consumer.DeadLettered, outcome)
	}
	for _, sql := range []string{
		"UPDATE onceward.consumer_dead_letters SET created_at = clock_timestamp() - interval '2 hours' WHERE event_type = 'Paid'",
		"UPDATE onceward.fences SET created_at = clock_timestamp() - interval '3 hours'",
		"INSERT INTO onceward.attempts (event_id, consumer_group, last_error, expires_at) VALUES (gen_random_uuid(), 'billing', 'x', clock_timestamp() - interval '1 hour')",
		"INSERT INTO onceward.consumer_dead_letters (consumer_group, topic, kafka_partition, kafka_offset, reason, error, state, expires_at) VALUES ('billing', 'orders', 9, 9, 'late', 'x', 'discarded', now())",
		"ANALYZE onceward.fences",
	} {
		_, err := db.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	return db
}

// asConsumer is a pool of a role that has the rights of a consumer and no others.
func asConsumer(t *testing.T, db *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	roles, err := migrations.NewRoles(migrations.Consumer, migrations.DefaultPrefix)
	require.NoError(t, err)
	require.NoError(t, roles.Apply(t.Context(), db))
	name := roles.Name(migrations.RoleConsumer)
	_, err = db.Exec(t.Context(), "ALTER ROLE "+name+" LOGIN PASSWORD 'secret'")
	require.NoError(t, err)
	config := db.Config()
	config.ConnConfig.User, config.ConnConfig.Password = name, "secret"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// scraped returns the series without their values, and whether the page has a line.
func scraped(t *testing.T, c prometheus.Collector) (text string, has func(pattern string)) {
	t.Helper()
	text = page(t, c)
	return text, func(pattern string) {
		t.Helper()
		require.Regexp(t, `(?m)^`+pattern+`$`, text)
	}
}

// What waits, and how retention stands, is shown from the database: no report was
// given here, as where maintenance runs from cron.
func TestMetricsFromTheDatabase(t *testing.T) {
	c := consumerprom.New()
	db := backlog(t, c)
	c.FromDatabase(asConsumer(t, db))
	text, has := scraped(t, c)
	has(`onceward_consumer_database_up\{of="backlog"\} 1`)
	has(`onceward_consumer_database_up\{of="retention"\} 1`)
	has(`onceward_consumer_open_letters\{group="billing",reason="handler"\} 2`)
	has(`onceward_consumer_oldest_open_letter_seconds\{group="billing",reason="handler"\} 72\d\d.*`)
	has(`onceward_consumer_open_events\{group="billing"\} 1`)
	has(`onceward_consumer_oldest_open_event_seconds\{group="billing"\} 108\d\d.*`)
	has(`onceward_consumer_stuck_effects\{group="billing"\} 1`)
	for _, table := range []string{"ahead", "attempts", "consumer_dead_letters", "fences", "processed_events"} {
		has(`onceward_consumer_table_bytes\{table="` + table + `"\} [1-9].*`)
	}
	has(`onceward_consumer_rows_overdue_seconds\{table="attempts"\} 36\d\d.*`)
	has(`onceward_consumer_partitions_ahead \d+`)
	has(`onceward_consumer_floor_timestamp_seconds\{class="\*",group="billing"\} .*`)
	has(`onceward_consumer_handler_seconds_count\{event_type="Paid",group="billing"\} 1`)
	has(`onceward_consumer_handler_seconds_count\{event_type="Charge",group="billing"\} 1`)
	require.NotContains(t, text, `reason="late"`, "was settled")
	require.NotContains(t, text, "maintained_timestamp")

	_, err := db.Exec(t.Context(), "DELETE FROM onceward.consumer_dead_letters")
	require.NoError(t, err)
	_, has = scraped(t, c)
	has(`onceward_consumer_open_letters\{group="billing",reason="handler"\} 2`) // of some seconds ago
}

// A database that is away fails no scrape, and holds it up once.
func TestMetricsWithoutTheDatabase(t *testing.T) {
	c := consumerprom.New()
	db := backlog(t, c)
	config := db.Config()
	config.MaxConns = 1
	full, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(full.Close)
	conn, err := full.Acquire(t.Context())
	require.NoError(t, err)
	t.Cleanup(conn.Release)
	c.FromDatabase(full)
	began := time.Now()
	text, has := scraped(t, c)
	has(`onceward_consumer_database_up\{of="backlog"\} 0`)
	has(`onceward_consumer_database_up\{of="retention"\} 0`)
	has(`onceward_consumer_handler_seconds_count\{event_type="Paid",group="billing"\} 1`)
	require.NotContains(t, text, "open_letters")
	require.Less(t, time.Since(began), 5*time.Second)
	began = time.Now()
	scraped(t, c)
	require.Less(t, time.Since(began), time.Second)
}

func TestAllMetricsAreClean(t *testing.T) {
	c := consumerprom.New()
	c.FromDatabase(backlog(t, c))
	c.Observe(snapshot(time.Now()))
	c.Maintained(report())
	c.Completed(func() consumer.CompletedStats { return consumer.CompletedStats{Hits: 1} })
	text := page(t, c)
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)

	described := make(chan *prometheus.Desc, 100)
	c.Describe(described)
	require.Len(t, described, strings.Count(text, "# HELP"), "each is shown")
}

// Behind a pooler nobody can look at retention: its series are absent, and not zero.
func TestMetricsBehindAPooler(t *testing.T) {
	c := consumerprom.New()
	db := backlog(t, c)
	pool, err := pgxpool.New(t.Context(), testdb.PgBouncer(t, db)+"&default_query_exec_mode=exec")
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	c.FromDatabase(pool)
	text, has := scraped(t, c)
	has(`onceward_consumer_database_up\{of="backlog"\} 1`)
	has(`onceward_consumer_database_up\{of="retention"\} 0`)
	has(`onceward_consumer_open_letters\{group="billing",reason="handler"\} 2`)
	for _, series := range []string{"partitions", "floor", "horizon", "maintained", "rows_overdue"} {
		require.NotContains(t, text, "onceward_consumer_"+series)
	}
}
