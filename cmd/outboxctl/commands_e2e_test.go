//go:build e2e

package main

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/operator/events"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/operator/status"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher"
)

func TestMain(m *testing.M) { os.Exit(testdb.Main(m)) }

// newDatabase returns an empty database that the commands of the test use.
func newDatabase(t *testing.T) (*pgxpool.Pool, string) {
	t.Helper()
	pool := testdb.New(t, "15")
	dsn := pool.Config().ConnString()
	t.Setenv(dsnVariable, dsn)
	t.Setenv(insecureVariable, "true") // the servers of tests have no certificate
	return pool, dsn
}

func fine(t *testing.T, args ...string) string {
	t.Helper()
	code, stdout, stderr := call(t, args...)
	require.Equal(t, exitFine, code, "%v\n%s%s", args, stdout, stderr)
	return stdout
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

func enqueue(t *testing.T, pool *pgxpool.Pool, payload string) outbox.Key {
	t.Helper()
	key, err := outbox.NewKey("orders")
	require.NoError(t, err)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = outbox.Enqueue(t.Context(), tx, outbox.Event{
		Key: key, AggregateType: "order", AggregateID: "A", Type: "OrderPaid", Payload: []byte(payload), Headers: map[string]string{"tenant": "t1"},
	})
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
	return key
}

func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	require.NoError(t, json.Unmarshal([]byte(text), &v), text)
	return v
}

func TestMigrateUpStatusDown(t *testing.T) {
	pool, _ := newDatabase(t)
	code, stdout, _ := call(t, "migrate", "status", "--side", "outbox")
	require.Equal(t, exitWrong, code)
	require.Contains(t, stdout, "not installed; run `outboxctl migrate up --side outbox`")

	plan := fine(t, "migrate", "up", "--side", "outbox", "--relay", "orders", "--dry-run")
	require.Contains(t, plan, "CREATE TABLE onceward.outbox (")
	require.Contains(t, plan, `CREATE PUBLICATION "onceward_orders"`)
	require.NotContains(t, plan, ";;")

	out := fine(t, "migrate", "up", "--side", "outbox", "--relay", "orders")
	require.Contains(t, out, "was 0\nmade 22 partitions: outbox_")
	require.Contains(t, out, "made publication onceward_orders")
	again := fine(t, "migrate", "up", "--side", "outbox")
	require.Contains(t, again, "nothing to migrate")
	require.Contains(t, again, "database "+pool.Config().ConnConfig.Database+", side outbox")
	require.Equal(t, "-- nothing to do\n", fine(t, "migrate", "up", "--side", "outbox", "--dry-run"))

	st := decode[migrateStatusReport](t, fine(t, "migrate", "status", "--side", "outbox", "--output", "json"))
	require.Equal(t, st.Latest, st.Version)
	require.Equal(t, 22, st.Partitions.Count)
	require.Equal(t, 14, st.Partitions.DaysAhead)
	require.Equal(t, []publicationReport{{Name: "onceward_orders", Faults: []string{}}}, st.Publications)

	up := decode[migrateReport](t, fine(t, "migrate", "up", "--side", "consumer", "-o", "json"))
	require.Len(t, up.Partitions, 72)
	require.Contains(t, fine(t, "migrate", "down", "--side", "outbox", "--dry-run"), "DROP TABLE onceward.dead_letters")
	require.Contains(t, fine(t, "migrate", "down", "--side", "outbox", "--yes"), "kept schema onceward: not empty")
	require.Contains(t, fine(t, "migrate", "down", "--side", "consumer", "--yes"), "dropped schema onceward")
}

func TestMissingTablesNameTheCommand(t *testing.T) {
	pool, _ := newDatabase(t)
	for _, args := range [][]string{{"status"}, {"show", someKey}} {
		code, _, stderr := call(t, args...)
		require.Equal(t, exitFailed, code)
		require.Contains(t, stderr, "run `outboxctl migrate up --side outbox`")
	}
	fine(t, "migrate", "up", "--side", "outbox")
	code, _, stderr := call(t, "show", someKey, "--consumer-dsn", pool.Config().ConnString())
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "run `outboxctl migrate up --side consumer`")
}

func TestStatus(t *testing.T) {
	pool, _ := newDatabase(t)
	fine(t, "migrate", "up", "--side", "outbox", "--relay", "orders")
	require.Contains(t, fine(t, "status"), "no relay is known here")

	enqueue(t, pool, "{}")
	require.Contains(t, wrong(t, "status"), "! no relay is known, and onceward.outbox holds 1 event: nobody publishes")
	exec(t, pool, "ANALYZE onceward.outbox")
	exec(t, pool, "SELECT pg_create_logical_replication_slot('onceward_ctl', 'pgoutput')")
	exec(t, pool, insertState, "onceward_ctl")
	exec(t, pool, insertLetter, "onceward_ctl", someKey[len("payments:"):], "payments", "open")

	code, stdout, stderr := call(t, "status")
	require.Equal(t, exitWrong, code, stderr)
	require.Contains(t, stdout, "about 1 row\n")
	require.Contains(t, stdout, "! relay ctl: no process of it is connected to PostgreSQL: start it, or look at its log and /readyz")
	require.Contains(t, stdout, "! slot onceward_ctl has 1 open dead letter")

	code, stdout, _ = call(t, "status", "--output", "json")
	require.Equal(t, exitWrong, code)
	st := decode[status.Report](t, stdout)
	require.Len(t, st.Relays, 1)
	require.Equal(t, "idempotent", st.Relays[0].Mode)
	require.Equal(t, "reserved", st.Relays[0].WALStatus)
	require.Positive(t, st.Relays[0].RetainedBytes)
	require.Equal(t, []status.LettersInState{{Slot: "onceward_ctl", State: "open", Letters: 1}}, st.DeadLetters)

	exec(t, pool, "SELECT pg_drop_replication_slot('onceward_ctl')")
	_, stdout, _ = call(t, "status")
	require.Contains(t, stdout, "its slot onceward_ctl is gone")
}

// What looks on works through PgBouncer; what holds a lock in its session does not.
func TestStatusThroughAPooler(t *testing.T) {
	pool, _ := newDatabase(t)
	fine(t, "migrate", "up", "--side", "outbox")
	t.Setenv(dsnVariable, testdb.Pooler(t, pool))
	require.Contains(t, fine(t, "status"), "no relay is known here")
	require.Contains(t, fine(t, "migrate", "status", "--side", "outbox"), "partitions  22")
	code, _, stderr := call(t, "migrate", "up", "--side", "outbox")
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "unsupported startup parameter")
}

const (
	insertState = `INSERT INTO onceward.relay_state (slot, relay, database, system_identifier, timeline, confirmed_lsn, publication)
VALUES ($1, 'ctl', current_database(), (SELECT system_identifier::text FROM pg_control_system()), 1, '0/10', 'onceward_orders')`
	insertLetter = `INSERT INTO onceward.dead_letters (slot, letter_id, namespace, aggregate_type, aggregate_id, event_type, content_type,
  created_at, tx_id, seq, position, error_class, error, state)
VALUES ($1, $2, $3, 'order', 'A', 'OrderPaid', 'application/json', now(), pg_current_xact_id(), 1, '0/10', 'too-large', '2 MB is more than 1 MB', $4)`
)

func TestShowFollowsAnEvent(t *testing.T) {
	pool, dsn := newDatabase(t)
	fine(t, "migrate", "up", "--side", "outbox")
	fine(t, "migrate", "up", "--side", "consumer")
	key := enqueue(t, pool, `{"total": 12}`)

	out := fine(t, "show", key.String())
	require.Contains(t, out, "pending: no relay is known here: none has begun yet, or all were retired")
	require.Contains(t, out, `13 B: {"total": 12}`)
	require.Contains(t, out, "order A")
	require.Contains(t, out, `{"tenant": "t1"}`)

	exec(t, pool, insertState, "onceward_ctl")
	require.Contains(t, fine(t, "show", key.String()), "pending: relay ctl has not begun yet")
	exec(t, pool, "INSERT INTO onceward.published_snapshots SELECT slot, '1:1:'::pg_snapshot, now() FROM onceward.relay_state ON CONFLICT (slot) DO UPDATE SET snapshot = excluded.snapshot, taken_at = excluded.taken_at")
	require.Contains(t, fine(t, "show", key.String()), "pending: not covered")
	require.Equal(t, key.String()+"\n", fine(t, "completion", "keys", "outboxctl show "+key.Namespace()+":"))
	code, out, _ := call(t, "show", key.String(), "--wait", "300ms")
	require.Equal(t, exitWrong, code)
	require.Contains(t, out, "! so it is still, after 300ms")
	exec(t, pool, "INSERT INTO onceward.published_snapshots SELECT slot, pg_current_snapshot(), now() FROM onceward.relay_state ON CONFLICT (slot) DO UPDATE SET snapshot = excluded.snapshot, taken_at = excluded.taken_at")
	require.Contains(t, fine(t, "show", key.String(), "--wait", "1h"), "published: covered by the published snapshot of relay ctl, taken at")
	exec(t, pool, insertLetter, "onceward_ctl", key.UUID(), "orders", "open")
	require.Contains(t, fine(t, "show", key.String()), "dead: too-large: 2 MB is more than 1 MB")
	exec(t, pool, "INSERT INTO onceward.replays (replay_id, id, namespace, aggregate_type, aggregate_id, event_type, created_at, reason) VALUES (gen_random_uuid(), $1, 'orders', 'order', 'A', 'OrderPaid', now(), 'asked by support')", key.UUID())

	got := decode[events.Life](t, fine(t, "show", key.String(), "--payload", "--output", "json", "--consumer-dsn", dsn))
	require.Equal(t, states.Dead, got.State)
	require.Equal(t, `{"total": 12}`, string(got.Row.Payload))
	require.Len(t, got.Replays, 1)
	require.Empty(t, *got.Groups)

	exec(t, pool, `INSERT INTO onceward.processed_events (event_id, consumer_group, event_type, namespace, fingerprint, outcome)
VALUES ($1, 'billing', 'OrderPaid', 'orders', '\x00', 'p'), ($1, 'mail', 'OrderPaid', 'orders', '\x00', 'd')`, key.UUID())
	out = fine(t, "show", "--consumer-dsn", dsn, key.String())
	require.Regexp(t, `billing +processed`, out)
	require.Regexp(t, `mail +dead`, out)

	exec(t, pool, "INSERT INTO onceward.dedup_windows (consumer_group, class, time_window, floor) VALUES ('slow', '*', '7 days', now())")
	replay := newKey(t, "orders").UUID()
	exec(t, pool, `INSERT INTO onceward.replays (replay_id, id, namespace, aggregate_type, aggregate_id, event_type, created_at, mode, replay_group, reason)
		VALUES ($1, $2, 'orders', 'order', 'A', 'OrderPaid', now(), 'reprocess', 'again', 'r')`, replay, key.UUID())
	exec(t, pool, `INSERT INTO onceward.processed_events (event_id, consumer_group, event_type, namespace, fingerprint, outcome)
		VALUES ($1, 'again', 'OrderPaid', 'orders', '\x00', 'p'), ($2, 'slow', 'OrderPaid', 'orders', '\x00', 'p')`,
		replay, claims.IDs(key.UUID(), 7*24*time.Hour, time.Now())[0])
	exec(t, pool, `INSERT INTO onceward.fences (event_id, consumer_group, name, owner, lease_until, request_fingerprint) VALUES ($1, 'billing', 'charge', 'me', now(), '\x00')`, key.UUID())
	exec(t, pool, `INSERT INTO onceward.attempts (event_id, consumer_group, attempts, last_error, expires_at) VALUES ($1, 'ship', 7, 'no stock', now())`, key.UUID())
	out = fine(t, "show", "--consumer-dsn", dsn, key.String())
	require.Regexp(t, `ship +7 +no stock`, out)
	require.Regexp(t, `slow +processed .* event, by arrival`, out)
	require.Regexp(t, `billing +charge +expired`, out)
	require.Regexp(t, `again +processed .* replay `+replay.String(), out)
}

// topic is that of the events of aggregate A.
const topic = "orders.order"

// published starts a broker with one record for each key, in the partition of aggregate A.
func published(t *testing.T, keys ...string) (brokers string, home int32) {
	t.Helper()
	const partitions = 3
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(partitions, topic))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	defer client.Close()
	home = publisher.Partition([]byte("A"), partitions)
	for _, key := range keys {
		record := &kgo.Record{Topic: topic, Partition: home, Headers: []kgo.RecordHeader{{Key: outbox.HeaderKey, Value: []byte(key)}}, Value: []byte("v")}
		require.NoError(t, client.ProduceSync(t.Context(), record).FirstErr())
	}
	return strings.Join(cluster.ListenAddrs(), ","), home
}

func TestShowFindsCopiesInKafka(t *testing.T) {
	pool, _ := newDatabase(t)
	fine(t, "migrate", "up", "--side", "outbox")
	key := enqueue(t, pool, "{}")
	brokers, home := published(t, "orders:other", key.String(), key.String())

	args := []string{"show", key.String(), "--brokers", brokers, "--topic", topic}
	require.Contains(t, fine(t, args...), "published: found in topic "+topic+" partition "+strconv.Itoa(int(home))+" offset 1")
	got := decode[events.Life](t, fine(t, append(args, "-o", "json")...))
	require.Len(t, got.Kafka.Copies, 2)
	require.Equal(t, []int32{home}, got.Kafka.Partitions)
}

func TestShowOfAnUnknownKey(t *testing.T) {
	pool, _ := newDatabase(t)
	fine(t, "migrate", "up", "--side", "outbox")
	code, stdout, stderr := call(t, "show", someKey)
	require.Equal(t, exitWrong, code, stderr)
	require.Contains(t, stdout, "not found: no committed row has this key")

	key := enqueue(t, pool, "{}")
	code, stdout, _ = call(t, "show", "billing:"+key.UUID().String(), "--output", "json")
	require.Equal(t, exitWrong, code)
	require.Equal(t, "this UUID belongs to namespace orders", decode[events.Life](t, stdout).Why)
}
