//go:build e2e

package redisfast_test

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/redisfast"
	"github.com/onceward/onceward/internal/redisserver"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

func TestMain(m *testing.M) { os.Exit(testdb.Main(m)) }

func version() string { return cmp.Or(os.Getenv("ONCEWARD_TEST_POSTGRES"), "15") }

// window is that of the one class.
const window = 30 * time.Hour

// world is one database and one Redis, with members of groups on them.
type world struct {
	t      *testing.T
	db     *pgxpool.Pool
	redis  *redisserver.Server
	asked  asked
	offset atomic.Int64
	fail   atomic.Pointer[error] // of the handler
	flaky  flaky
	load   atomic.Bool  // handlers are flaky
	seen   atomic.Int64 // handlers without a claim that have returned well
}

// asked counts what reaches the database: it is the tracer of the pool.
type asked struct{ statements, claims atomic.Int64 }

func (a *asked) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	a.count(q.SQL, q.Args)
	return ctx
}

func (*asked) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (a *asked) TraceBatchStart(ctx context.Context, _ *pgx.Conn, b pgx.TraceBatchStartData) context.Context {
	for _, q := range b.Batch.QueuedQueries {
		a.count(q.SQL, q.Arguments)
	}
	return ctx
}

func (*asked) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (*asked) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

func (a *asked) count(sql string, args []any) {
	a.statements.Add(1)
	switch {
	case strings.Contains(sql, "-- name: ClaimEvent "):
		a.claims.Add(1)
		return
	case !strings.Contains(sql, "-- name: ClaimEvents "):
		return
	}
	for _, arg := range args {
		if ids, ok := arg.([]string); ok {
			a.claims.Add(int64(len(ids)))
			return
		}
	}
}

func newWorld(t *testing.T, redisArgs ...string) *world {
	t.Helper()
	return newWorldOn(t, testdb.New(t, version()), redisArgs...)
}

func newWorldOn(t *testing.T, pool *pgxpool.Pool, redisArgs ...string) *world {
	t.Helper()
	m, err := migrations.New(migrations.Config{Pool: pool, Side: migrations.Consumer})
	require.NoError(t, err)
	_, err = m.Up(t.Context())
	require.NoError(t, err)
	w := &world{t: t, redis: redisserver.Start(t, redisArgs...)}
	conf := pool.Config()
	conf.ConnConfig.Tracer = &w.asked
	conf.MaxConns = 8
	w.db, err = pgxpool.NewWithConfig(t.Context(), conf)
	require.NoError(t, err)
	t.Cleanup(w.db.Close)
	w.exec(`CREATE TABLE effects (consumer_group text NOT NULL, event text NOT NULL, n bigint NOT NULL)`)
	return w
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	_, err := w.db.Exec(w.t.Context(), sql, args...)
	require.NoError(w.t, err)
}

func (w *world) count(sql string, args ...any) (n int) {
	w.t.Helper()
	require.NoError(w.t, w.db.QueryRow(w.t.Context(), sql, args...).Scan(&n))
	return n
}

// once demands that n events have one effect each in the group, and no other has any.
func (w *world) once(group string, n int) {
	w.t.Helper()
	require.Equal(w.t, n, w.count("SELECT count(DISTINCT event) FROM effects WHERE consumer_group = $1", group), "events with an effect: fewer are lost")
	require.Equal(w.t, n, w.count("SELECT count(*) FROM effects WHERE consumer_group = $1", group), "effects: more are doubled")
}

// client is a client of Redis for the test itself.
func (w *world) client() *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: w.redis.Address()})
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

// cache makes a layer, with a timeout that a loaded machine keeps.
func (w *world) cache(change ...func(*redisfast.Config)) *redisfast.Cache {
	w.t.Helper()
	cfg := redisfast.Config{
		Redis: redis.UniversalOptions{Addrs: []string{w.redis.Address()}}, Timeout: 2 * time.Second,
		Logger: slog.New(slog.NewTextHandler(w.t.Output(), nil)),
	}
	for _, c := range change {
		c(&cfg)
	}
	c, err := redisfast.New(cfg)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, c.Close()) })
	return c
}

// member is a process of a group, within a session.
type member struct {
	*consumer.Router
	w         *world
	processor *consumer.Processor
	cache     *redisfast.Cache // nil: none, or another Completed
	marks     []consumer.Mark
	history   string
}

// member makes one with a layer, and begins its session.
func (w *world) member(group string, c consumer.Completed) *member {
	w.t.Helper()
	m := w.idle(group, c)
	m.begin()
	return m
}

// idle is a member without a session.
func (w *world) idle(group string, c consumer.Completed) *member {
	w.t.Helper()
	cfg := consumer.Config{
		Group: group, DB: w.db, Logger: slog.New(slog.NewTextHandler(w.t.Output(), nil)), LockTimeout: 30 * time.Second,
		Classes: []consumer.Class{{Pattern: "*", Window: window}}, Completed: c,
	}
	p, err := consumer.New(w.t.Context(), cfg)
	require.NoError(w.t, err)
	m := &member{Router: consumer.NewRouter(p), w: w, processor: p, marks: []consumer.Mark{{Topic: "orders", High: -1}}}
	insert := func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		if err := w.fail.Load(); err != nil {
			return *err
		}
		if w.load.Load() && w.flaky.fails(ev.Key.UUID()) {
			return errFlaky
		}
		_, err := tx.Exec(ctx, "INSERT INTO effects VALUES ($1, $2, $3)", group, ev.Key.String(), len(ev.Payload))
		return err
	}
	m.cache, _ = c.(*redisfast.Cache)
	m.Tx("Paid", insert)
	m.Batch("Counted", consumer.BatchOptions{}, insert)
	see := func(context.Context, consumer.Event) error {
		if err := w.fail.Load(); err != nil {
			return *err
		}
		w.seen.Add(1)
		return nil
	}
	if c == nil {
		m.AtLeastOnce("Seen", see)
	} else {
		m.AtLeastOnce("Seen", see, consumer.Remembered)
	}
	return m
}

// begin begins a session with the history that the database is on, as saramagroup does.
func (m *member) begin() {
	m.w.t.Helper()
	p, err := m.Progress(m.w.t.Context())
	require.NoError(m.w.t, err)
	m.history = p.History
	require.NoError(m.w.t, m.BeginProgress(m.w.t.Context(), p.History, m.marks))
}

// event makes a record of a new event.
func (w *world) event(eventType string) consumer.Record {
	w.t.Helper()
	k, err := outbox.NewKey("shop")
	require.NoError(w.t, err)
	return w.again(consumer.Record{Key: []byte("o-1"), Value: []byte(`{"amount":10}`), Headers: []consumer.Header{
		{Name: outbox.HeaderKey, Value: []byte(k.String())}, {Name: record.HeaderEventType, Value: []byte(eventType)},
	}})
}

// events makes n of them.
func (w *world) events(n int, eventType string) []consumer.Record {
	all := make([]consumer.Record, n)
	for i := range all {
		all[i] = w.event(eventType)
	}
	return all
}

// again is a copy at another offset.
func (w *world) again(rec consumer.Record) consumer.Record {
	rec.Source = consumer.Source{Topic: "orders", Offset: w.offset.Add(1)}
	return rec
}

func (m *member) handle(rec consumer.Record, want consumer.Outcome) {
	m.w.t.Helper()
	got, err := m.HandleRecord(m.w.t.Context(), rec)
	require.NoError(m.w.t, err)
	require.Equal(m.w.t, want, got)
}

func (m *member) handleAll(recs []consumer.Record, want consumer.Outcome) {
	m.w.t.Helper()
	for _, rec := range recs {
		m.handle(rec, want)
	}
}

// batches delivers records in batches, and each again that failed.
func (m *member) batches(ctx context.Context, recs []consumer.Record, size int) error {
	for len(recs) > 0 {
		n := min(size, len(recs))
		var failed []consumer.Record
		for i, d := range m.HandleRecords(ctx, recs[:n]) {
			switch {
			case d.Finished():
			case d.Err != nil && !errors.Is(d.Err, errFlaky) && !errors.Is(d.Err, consumer.ErrHeldBack):
				return d.Err
			default:
				failed = append(failed, recs[i])
			}
		}
		recs = append(failed, recs[n:]...)
	}
	return nil
}

// unasked demands that a call asks the database nothing.
func (w *world) unasked(call func()) {
	w.t.Helper()
	before := w.asked.statements.Load()
	call()
	require.Equal(w.t, before, w.asked.statements.Load(), "statements: it does not reach the database")
}

var errFlaky = errors.New("flaky")

// flaky fails the first attempt of a share of the events.
type flaky struct {
	mu   sync.Mutex
	seen map[uuid.UUID]bool
}

// fails reports whether this attempt does: of every tenth event the first.
func (f *flaky) fails(id uuid.UUID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if id[15]%10 != 0 || f.seen[id] {
		return false
	}
	if f.seen == nil {
		f.seen = make(map[uuid.UUID]bool)
	}
	f.seen[id] = true
	return true
}
