//go:build e2e

package streams_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/examples/streams"
	"github.com/onceward/onceward/internal/process"
	"github.com/onceward/onceward/internal/redisserver"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
)

// The test binary is also the receiver that is killed, with these in its environment.
const envRedis, envDB = "STREAMS_TEST_REDIS", "STREAMS_TEST_DB"

func TestMain(m *testing.M) {
	if os.Getenv(envRedis) == "" {
		os.Exit(testdb.Main(m))
	}
	if err := neverAcknowledges(context.Background(), os.Getenv(envRedis), os.Getenv(envDB)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// neverAcknowledges receives, and stands still where it would acknowledge its first entry.
func neverAcknowledges(ctx context.Context, address, dsn string) error {
	db, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	p, err := streams.NewProcessor(ctx, db)
	if err != nil {
		return err
	}
	client := redis.NewClient(&redis.Options{Addr: address})
	client.AddHook(standsAtXACK{})
	r := streams.Receiver{Redis: client, Processor: p, Name: "doomed", Idle: time.Hour}
	return errors.Join(r.Run(ctx), errors.New("it has ended"))
}

type standsAtXACK struct{}

func (standsAtXACK) DialHook(next redis.DialHook) redis.DialHook { return next }
func (standsAtXACK) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (standsAtXACK) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "xack" {
			select {}
		}
		return next(ctx, cmd)
	}
}

func key(t *testing.T, days int, id string) string {
	k, err := outbox.ExternalKey("shop", id, time.Now().AddDate(0, 0, -days))
	require.NoError(t, err)
	return k.String()
}

// add adds every event five times, as producers do who get no answer.
func add(t *testing.T, client *redis.Client) {
	k1 := key(t, 0, "e-1")
	events := []map[string]any{
		{"key": k1, "order": `{"id":"o-1"}`},
		{"key": key(t, 0, "e-2"), "order": `{"id":"o-2"}`},
		{"key": key(t, 3, "e-3"), "order": `{"id":"o-3"}`},
		{"key": key(t, 0, "e-4"), "order": `{"id":""}`},
		{"key": key(t, 0, "e-5"), "order": `no json`},
		{"key": k1, "order": `{"id":"o-6"}`},                // another event under a key that is taken
		{"key": key(t, 20, "e-7"), "order": `{"id":"o-7"}`}, // from before the window
		{"order": `{"id":"o-8"}`},                           // no key
	}
	for range 5 {
		for _, values := range events {
			require.NoError(t, client.XAdd(t.Context(), &redis.XAddArgs{Stream: streams.Stream, Values: values}).Err())
		}
	}
}

func count(t *testing.T, db *pgxpool.Pool, sql string) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRow(t.Context(), sql).Scan(&n), sql)
	return n
}

// Each event has five entries, and the first receiver is killed with kill -9 after the commit of
// an effect and before XACK: one shipment each, whoever takes over. What cannot be shipped is one
// dead letter, what can never be applied is put aside, and nothing stays pending.
func TestReceive(t *testing.T) {
	db := testdb.New(t, "15")
	m, err := migrations.New(migrations.Config{Pool: db, Side: migrations.Consumer})
	require.NoError(t, err)
	_, err = m.Up(t.Context())
	require.NoError(t, err)
	_, err = db.Exec(t.Context(), streams.Schema)
	require.NoError(t, err)
	server := redisserver.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Address()})
	t.Cleanup(func() { _ = client.Close() })
	add(t, client)

	log := filepath.Join(t.TempDir(), "doomed.log")
	doomed, err := process.Start(process.Spec{Path: os.Args[0], LogFile: log, DeathSignal: syscall.SIGKILL,
		Env: []string{envRedis + "=" + server.Address(), envDB + "=" + db.Config().ConnString()}})
	require.NoError(t, err)
	t.Cleanup(doomed.Kill)
	require.Eventually(t, func() bool { return count(t, db, "SELECT count(*) FROM shipments") == 1 },
		time.Minute, 5*time.Millisecond, "the receiver ships nothing")
	doomed.Kill()
	left, err := client.XPending(t.Context(), streams.Stream, streams.Group).Result()
	require.NoError(t, err)
	require.Equal(t, map[string]int64{"doomed": 10}, left.Consumers, "acknowledged by the dead one%s", process.Tail(log))

	p, err := streams.NewProcessor(t.Context(), db)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	for n := range 2 {
		// So short that each takes from the other what this one is at.
		r := streams.Receiver{Redis: client, Processor: p, Name: fmt.Sprint("r-", n), Idle: time.Millisecond}
		go func() { ended <- r.Run(ctx) }()
	}
	require.Eventually(t, func() bool {
		groups, err := client.XInfoGroups(t.Context(), streams.Stream).Result()
		return err == nil && groups[0].Lag == 0 && groups[0].Pending == 0
	}, time.Minute, 5*time.Millisecond, "entries stay pending")
	cancel()
	for range 2 {
		require.NoError(t, <-ended)
	}

	for sql, want := range map[string]int{
		"SELECT count(*) FROM shipments": 3,
		"SELECT count(DISTINCT order_id) FROM shipments WHERE order_id IN ('o-1', 'o-2', 'o-3')":           3,
		"SELECT count(*) FROM onceward.consumer_dead_letters WHERE topic = 'from:shop'":                    2,
		"SELECT attempts FROM onceward.consumer_dead_letters WHERE error LIKE '%no id%'":                   3,
		"SELECT count(*) FROM onceward.consumer_dead_letters WHERE error LIKE '%decode%' AND attempts < 3": 1,
	} {
		require.Equal(t, want, count(t, db, sql), sql)
	}
	refused, err := client.XRange(t.Context(), streams.Refused, "-", "+").Result()
	require.NoError(t, err)
	entries := make(map[any]any)
	for _, e := range refused {
		require.NotEmpty(t, e.Values["error"])
		entries[e.Values["entry"]] = e.Values["of:order"]
	}
	orders := make(map[any]int)
	for _, order := range entries {
		orders[order]++
	}
	require.Equal(t, map[any]int{`{"id":"o-6"}`: 5, `{"id":"o-7"}`: 5, `{"id":"o-8"}`: 5}, orders)

	router := consumer.NewRouter(p)
	streams.Register(router)
	_, err = db.Exec(t.Context(), "UPDATE onceward.consumer_dead_letters SET state = 'requested'")
	require.NoError(t, err)
	done, err := router.Redrive(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, 2, done, "they still fail, and are open again")
}
