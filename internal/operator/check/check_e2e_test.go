//go:build e2e

package check_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/internal/operator/check"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/relay"
)

func TestMain(m *testing.M) { os.Exit(testdb.Main(m)) }

// ready returns a database with the outbox in it, and a configuration that leads
// to it and to a cluster with the topic shop.order.
func ready(t *testing.T) (*pgxpool.Pool, *relay.Config) {
	t.Helper()
	return readyOn(t, "15")
}

func readyOn(t *testing.T, version string) (*pgxpool.Pool, *relay.Config) {
	t.Helper()
	pool := testdb.New(t, version)
	m, err := migrations.New(migrations.Config{Pool: pool, Side: migrations.Outbox, Relay: "orders"})
	require.NoError(t, err)
	_, err = m.Up(t.Context())
	require.NoError(t, err)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, "shop.order"))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	return pool, config(pool.Config().ConnString(), cluster.ListenAddrs()...)
}

func enqueue(t *testing.T, pool *pgxpool.Pool, aggregateType string) {
	t.Helper()
	key, err := outbox.NewKey("shop")
	require.NoError(t, err)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := outbox.Enqueue(t.Context(), tx, outbox.Event{Key: key, AggregateType: aggregateType, AggregateID: "1", Type: "T"})
		return err
	}))
}

func TestAHealthyRelayPasses(t *testing.T) {
	pool, cfg := ready(t)
	enqueue(t, pool, "order")
	cfg.Outbox.Start = "now"
	verdicts := check.Run(t.Context(), cfg, nil)
	require.NotEqual(t, check.Failed, check.Worst(verdicts), "%v", verdicts)
	require.Equal(t, check.Warning, named(t, verdicts, "topic shop.order").Status, "one replica")
	require.Equal(t, check.Warning, named(t, verdicts, "log kept for the slot").Status)
	require.Contains(t, named(t, verdicts, "replication slot").Detail, "makes it at its first start")
	var slots int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_replication_slots WHERE database = current_database()`).Scan(&slots))
	require.Zero(t, slots, "it changes nothing")
}

func TestEveryFailureIsListedAtOnce(t *testing.T) {
	pool, cfg := ready(t)
	enqueue(t, pool, "invoice")
	_, err := pool.Exec(t.Context(), `ALTER PUBLICATION onceward_orders SET (publish_via_partition_root = false);
		ALTER TABLE onceward.outbox RENAME COLUMN seq TO number`)
	require.NoError(t, err)
	verdicts := check.Run(t.Context(), cfg, nil)
	require.Equal(t, "COLUMN", named(t, verdicts, "outbox columns").Code)
	require.Equal(t, "PUBLICATION_ROOT", named(t, verdicts, "publication").Code)
	require.Equal(t, check.Skipped, named(t, verdicts, "replication slot").Status)
	topic := named(t, verdicts, "topic shop.invoice")
	require.Equal(t, check.Held, topic.Status)
	require.Contains(t, topic.Cure, "kafka-topics.sh")
}

func TestPartitionsThatRunOutAreSeen(t *testing.T) {
	pool, cfg := ready(t)
	_, err := pool.Exec(t.Context(), `DO $$ DECLARE p regclass; BEGIN FOR p IN SELECT inhrelid FROM pg_inherits
		WHERE inhparent = 'onceward.outbox'::regclass ORDER BY inhrelid::regclass::text DESC LIMIT 10 LOOP EXECUTE 'DROP TABLE ' || p; END LOOP; END $$`)
	require.NoError(t, err)
	v := named(t, check.Run(t.Context(), cfg, nil), "partitions of today and ahead")
	require.Equal(t, check.Warning, v.Status, v.Detail)
	require.Contains(t, v.Cure, "outboxctl")
}

// What the database has switched on shows before the relay is started, with the
// statement that switches it off.
func TestAReadOnlyDatabaseIsSeen(t *testing.T) {
	pool, cfg := ready(t)
	database := pgx.Identifier{pool.Config().ConnConfig.Database}.Sanitize()
	_, err := pool.Exec(t.Context(), `ALTER DATABASE `+database+` SET default_transaction_read_only = on`)
	require.NoError(t, err)
	v := named(t, check.Run(t.Context(), cfg, nil), "server version, wal_level, encoding, role")
	require.Equal(t, check.Failed, v.Status)
	require.Equal(t, "READ_ONLY", v.Code)
	require.Equal(t, "BEGIN READ WRITE; ALTER DATABASE "+database+" RESET default_transaction_read_only; COMMIT;", v.Cure)
	conn, err := pgx.Connect(t.Context(), pool.Config().ConnString()) // is read-only, as the operator's is
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), v.Cure) // in one message, as psql -c sends it
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
	require.NotEqual(t, check.Failed, check.Worst(check.Run(t.Context(), cfg, nil)))
}

// The relay's sessions are pinned, whatever is set for the database.
func TestTheRelaysSessionIsPinned(t *testing.T) {
	pool, cfg := ready(t)
	database := pgx.Identifier{pool.Config().ConnConfig.Database}.Sanitize()
	for _, setting := range []string{"search_path = public, pg_catalog", "row_security = on", "idle_session_timeout = '1s'", "jit = on", "statement_timeout = '30s'", "lock_timeout = '30s'"} {
		_, err := pool.Exec(t.Context(), `ALTER DATABASE `+database+` SET `+setting)
		require.NoError(t, err)
	}
	conn, err := relay.Connect(t.Context(), cfg.Postgres.DSN+"&options=-csearch_path%3Dpublic&search_path=public", "x")
	require.NoError(t, err)
	defer conn.Close(t.Context())
	var path, security, idle, jit, limits string
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT current_setting('search_path'), current_setting('row_security'),
		current_setting('idle_session_timeout'), current_setting('jit'), current_setting('statement_timeout') || current_setting('lock_timeout')`).Scan(&path, &security, &idle, &jit, &limits))
	require.Equal(t, []string{"pg_catalog, pg_temp", "off", "0", "off", "00"}, []string{path, security, idle, jit, limits})
}

// What runs somebody else's code inside of ours fails the check, by name, with our
// command where that mends it.
func TestForeignFunctionsAreSeen(t *testing.T) {
	pool, cfg := ready(t)
	require.Equal(t, check.OK, named(t, check.Run(t.Context(), cfg, nil), "foreign functions").Status)
	exec := func(sql string) {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	exec(`CREATE FUNCTION public.pg_current_xact_id() RETURNS xid8 LANGUAGE sql AS $$ SELECT '3'::xid8 $$;
		ALTER TABLE onceward.outbox ALTER tx_id SET DEFAULT public.pg_current_xact_id()`)
	v := named(t, check.Run(t.Context(), cfg, nil), "foreign functions")
	require.Equal(t, []any{check.Failed, "HOSTILE_DEPENDENCY"}, []any{v.Status, v.Code})
	require.Contains(t, v.Detail, "default value for onceward.outbox.tx_id leans on function public.pg_current_xact_id()")
	require.Contains(t, v.Detail, "and 18 more", "each partition has the default too")
	require.Contains(t, v.Cure, "outboxctl migrate up")
	m, err := migrations.New(migrations.Config{Pool: pool, Side: migrations.Outbox})
	require.NoError(t, err)
	_, err = m.Up(t.Context())
	require.NoError(t, err)
	require.Equal(t, check.OK, named(t, check.Run(t.Context(), cfg, nil), "foreign functions").Status, "the cure works")

	exec(`CREATE FUNCTION public.seen() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
		CREATE TRIGGER seen BEFORE INSERT ON onceward.replays FOR EACH ROW EXECUTE FUNCTION public.seen()`)
	v = named(t, check.Run(t.Context(), cfg, nil), "foreign functions")
	require.Equal(t, check.Failed, v.Status)
	require.Contains(t, v.Cure, "drop trigger seen on onceward.replays")
}

// What exactly-once mode is refused shows before it begins, with what gives it: what lets no
// transaction begin fails, what lets none be seen that is half committed warns.
func TestTheRightsOfExactlyOnceMode(t *testing.T) {
	pool, cfg := ready(t)
	enqueue(t, pool, "order")
	cfg.Outbox.Start = "now"
	cfg.Kafka.Mode = relay.ModeExactlyOnce
	var id string
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT 'onceward-' || system_identifier || '-' || $1 FROM pg_control_system()`, cfg.SlotName()).Scan(&id))
	names := []string{"transactional id " + id, "group " + id, "half commits"}
	verdicts := check.Run(t.Context(), cfg, nil)
	for _, name := range names {
		require.Equal(t, check.Verdict{Name: name, Status: check.OK}, named(t, verdicts, name))
	}

	allow := func(resource kmsg.ACLResourceType, name string, op kmsg.ACLOperation) kfake.ACL {
		return kfake.ACL{Resource: resource, Name: name, Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: op, Allow: true}
	}
	password := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(password, []byte("secret"), 0o600))
	for _, c := range []struct {
		rights []kfake.ACL
		want   map[string]check.Status
	}{
		{[]kfake.ACL{
			allow(kmsg.ACLResourceTypeTransactionalId, id, kmsg.ACLOperationWrite),
			allow(kmsg.ACLResourceTypeTopic, "shop.order", kmsg.ACLOperationRead), allow(kmsg.ACLResourceTypeTopic, "shop.order", kmsg.ACLOperationWrite),
		}, map[string]check.Status{names[0]: check.OK, names[1]: check.Failed, names[2]: check.Warning}},
		{[]kfake.ACL{
			allow(kmsg.ACLResourceTypeGroup, id, kmsg.ACLOperationRead), allow(kmsg.ACLResourceTypeTopic, "__consumer_offsets", kmsg.ACLOperationRead),
			allow(kmsg.ACLResourceTypeTopic, "shop.order", kmsg.ACLOperationRead), allow(kmsg.ACLResourceTypeTopic, "shop.order", kmsg.ACLOperationWrite),
		}, map[string]check.Status{names[0]: check.Failed, names[1]: check.OK, names[2]: check.OK}},
	} {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, "shop.order"), kfake.EnableSASL(), kfake.EnableACLs(),
			kfake.Superuser("PLAIN", "admin", "admin"), kfake.User("PLAIN", "relay", "secret", c.rights...))
		require.NoError(t, err)
		t.Cleanup(cluster.Close)
		cfg.Kafka.Brokers = cluster.ListenAddrs()
		cfg.Kafka.SASL = relay.SASLConfig{Mechanism: "PLAIN", Username: "relay", PasswordFile: password}
		verdicts := check.Run(t.Context(), cfg, nil)
		for name, want := range c.want {
			v := named(t, verdicts, name)
			require.Equal(t, want, v.Status, "%+v", v)
			if want != check.OK {
				require.Contains(t, v.Cure, "kafka-acls.sh --bootstrap-server "+cluster.ListenAddrs()[0]+" --add --allow-principal User:relay --operation ")
				require.Equal(t, map[check.Status]string{check.Failed: "KAFKA", check.Warning: "HALF_COMMITS"}[want], v.Code)
			}
		}
	}
}
