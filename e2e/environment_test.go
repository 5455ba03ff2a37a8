//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/pgserver"
	"github.com/onceward/onceward/migrations"
)

// environment is what one test has for itself: a database with both sides installed,
// a relay's name, and a namespace whose topics nobody else writes.
//
// The superuser makes the database and the roles, and looks on. Everything else
// is done with the rights of its role: see the roles' names below.
type environment struct {
	t          *testing.T
	name       string // of relay, database and namespace
	server     *pgserver.Server
	pool       *pgxpool.Pool // the superuser: what a test arranges and looks at
	app        *pgxpool.Pool // the producing service: a writer that owns its business tables
	brokers    []string
	admin      sarama.ClusterAdmin
	partitions int32
}

var environments atomic.Int64

func newEnvironment(t *testing.T, version string) *environment {
	t.Helper()
	return newEnvironmentOn(t, postgres(t, version))
}

// newEnvironmentOn makes an environment on a server of the test's own.
func newEnvironmentOn(t *testing.T, server *pgserver.Server) *environment {
	t.Helper()
	return newEnvironmentBetween(t, server, kafka(t).Addrs())
}

// newEnvironmentBetween makes an environment on servers of the caller's choice.
func newEnvironmentBetween(t *testing.T, server *pgserver.Server, brokers []string) *environment {
	t.Helper()
	ctx := t.Context()
	w := &environment{t: t, name: fmt.Sprintf("t%d_%d", os.Getpid(), environments.Add(1)), server: server, brokers: brokers, partitions: 6}
	require.NoError(t, w.superuser(ctx, "CREATE DATABASE "+w.name))
	w.openPool()
	w.makeRoles()
	w.app = w.as(appLogin)
	var err error
	w.admin, err = sarama.NewClusterAdmin(w.brokers, kafkaConfig())
	require.NoError(t, err)
	t.Cleanup(w.close)
	return w
}

// openPool opens the superuser's pool. To compile what the tests ask of a handful of
// rows would take PostgreSQL seconds a question.
func (w *environment) openPool() {
	w.t.Helper()
	conf, err := pgxpool.ParseConfig(w.server.DSN(w.name))
	require.NoError(w.t, err)
	conf.MaxConns = 24 // a writer may hold one and want another
	conf.ConnConfig.RuntimeParams["jit"], conf.ConnConfig.RuntimeParams["client_encoding"] = "off", "UTF8"
	w.pool, err = pgxpool.NewWithConfig(w.t.Context(), conf)
	require.NoError(w.t, err)
}

// moveTo makes the environment one of another server, which has its database.
func (w *environment) moveTo(server *pgserver.Server) {
	w.t.Helper()
	w.pool.Close()
	w.app.Close()
	w.server = server
	w.openPool()
	w.app = w.as(appLogin)
}

// install makes the tables of both sides and the publication.
func (w *environment) install() {
	w.t.Helper()
	for _, cfg := range []migrations.Config{
		{Pool: w.as(maintainerLogin), Side: migrations.Outbox, Relay: w.name}, {Pool: w.as(consumerMaintainerLogin), Side: migrations.Consumer},
	} {
		m, err := migrations.New(cfg)
		require.NoError(w.t, err)
		_, err = m.Up(w.t.Context())
		require.NoError(w.t, err)
	}
}

func (w *environment) topic() string { return w.name + ".order" }

func (w *environment) createTopic(settings map[string]string) {
	w.t.Helper()
	entries := map[string]*string{}
	for k, v := range settings {
		entries[k] = &v
	}
	require.NoError(w.t, w.admin.CreateTopic(w.topic(), &sarama.TopicDetail{NumPartitions: w.partitions, ReplicationFactor: 1, ConfigEntries: entries}, false))
}

func (w *environment) superuser(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, w.server.DSN("postgres"))
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(ctx))
}

// close drops slot, database and topic. What is in use still is a leftover.
func (w *environment) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		w.pool.Close()
		w.app.Close()
	}()
	select {
	case <-closed:
	case <-ctx.Done(): // a test that failed left a transaction open, for which every slot to come would wait
		w.t.Error("a connection was never given back to its pool")
		ctx, cancel = context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := w.superuser(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '"+w.name+"'"); err != nil {
			w.t.Errorf("end what is connected: %v", err)
		}
	}
	err := w.dropSlots(ctx)
	if err != nil {
		w.t.Errorf("drop the slot: %v", err)
	}
	if err := w.superuser(ctx, "DROP DATABASE "+w.name); err != nil {
		w.t.Errorf("drop the database: %v", err)
	}
	if err := w.admin.DeleteTopic(w.topic()); err != nil && !errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
		w.t.Errorf("delete the topic: %v", err)
	}
	_ = w.admin.Close()
}

// dropSlots waits for the walsender of a relay that has ended: the server learns
// of its end a moment after the process is gone. One that lives holds it for good.
func (w *environment) dropSlots(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		err := w.superuser(ctx, fmt.Sprintf("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '%s'", w.name))
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "55006" { // object_in_use
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// leftovers reports sessions, slots and databases that a test left on a server.
func leftovers(ctx context.Context, s *pgserver.Server) error {
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var slots, databases []string
	err = conn.QueryRow(ctx, `SELECT array(SELECT slot_name::text FROM pg_replication_slots), array(SELECT datname::text FROM pg_database WHERE datname ~ '^t[0-9]')`).Scan(&slots, &databases)
	if err == nil && len(slots)+len(databases) > 0 {
		err = fmt.Errorf("left on PostgreSQL %d: slots %v, databases %v", s.Version(), slots, databases)
	}
	return err
}

// config writes a relay.yaml that leads to this environment; more is appended to it.
func (w *environment) config(more ...string) string {
	w.t.Helper()
	path := filepath.Join(w.t.TempDir(), "relay.yaml")
	text := fmt.Sprintf(`name: %s
postgres: {dsn: "%s", insecure: true}
kafka: {brokers: ["%s"], insecure: true}
routes: [{topic: "{namespace}.{aggregate_type}"}]
log: {format: text}
%s
`, w.name, w.dsn(relayLogin), strings.Join(w.brokers, `", "`), strings.Join(more, "\n"))
	require.NoError(w.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func kafkaConfig() *sarama.Config {
	c := sarama.NewConfig()
	c.Version = sarama.V2_8_0_0
	c.Consumer.IsolationLevel = sarama.ReadCommitted
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Producer.Return.Successes = true
	c.Producer.Partitioner = sarama.NewManualPartitioner
	// A broker that was stopped for longer than its session is fenced until its
	// next heartbeat, two seconds, and until then names no broker at all.
	c.Metadata.Retry.Max = int(20 * time.Second / c.Metadata.Retry.Backoff)
	return c
}

// records reads the topic from its beginning to its present end, each partition
// in order.
func (w *environment) records() []*sarama.ConsumerMessage {
	w.t.Helper()
	client, err := sarama.NewClient(w.brokers, kafkaConfig())
	require.NoError(w.t, err)
	defer client.Close()
	reader, err := sarama.NewConsumerFromClient(client)
	require.NoError(w.t, err)
	defer reader.Close()
	var all []*sarama.ConsumerMessage
	for p := range w.partitions {
		end, err := client.GetOffset(w.topic(), p, sarama.OffsetNewest)
		require.NoError(w.t, err)
		if end == 0 {
			continue
		}
		part, err := reader.ConsumePartition(w.topic(), p, sarama.OffsetOldest)
		require.NoError(w.t, err)
		for {
			select {
			case m := <-part.Messages():
				all = append(all, m)
				if m.Offset < end-1 {
					continue
				}
			case <-time.After(30 * time.Second):
				w.t.Fatalf("partition %d: no message for 30 s before offset %d", p, end)
			}
			break
		}
		require.NoError(w.t, part.Close())
	}
	return all
}

// eventually asks until the answer is yes. The condition comes about by the
// work of other processes; the limit is for a broken one.
func eventually(t *testing.T, what string, limit time.Duration, yes func() bool) {
	t.Helper()
	require.Eventually(t, yes, limit, 20*time.Millisecond, what)
}

// workedOff waits until nothing is left of what other processes work off, however long
// that takes: a limit would be one for the machine. It fails when for two minutes no less
// is left than there was.
func workedOff(t *testing.T, what string, left func() int64) {
	t.Helper()
	least, since := int64(math.MaxInt64), time.Now()
	for range time.Tick(20 * time.Millisecond) {
		switch n := left(); {
		case n == 0:
			return
		case n < least:
			least, since = n, time.Now()
		default:
			require.Less(t, time.Since(since), 2*time.Minute, "nothing moves: %d %s", n, what)
		}
	}
}

// scalar reads one value.
func scalar[T any](w *environment, sql string, args ...any) T {
	w.t.Helper()
	var v T
	require.NoError(w.t, w.pool.QueryRow(w.t.Context(), sql, args...).Scan(&v), sql)
	return v
}
