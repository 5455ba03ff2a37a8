//go:build e2e

package fingerprint_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/fingerprint"
	"github.com/onceward/onceward/internal/pgserver"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

const insertEffect = "INSERT INTO effects VALUES ($1, '')"

// costs is a durable server with a group that has a handler of each kind, which writes one
// row.
type costs struct {
	b      *testing.B
	db     *pgxpool.Pool
	router *consumer.Router
	source *fingerprint.Source
	offset int64
}

func newCosts(b *testing.B) *costs {
	b.Helper()
	server, err := pgserver.Start(b.Context(), pgserver.Options{Version: "15", Settings: map[string]string{"fsync": "on", "synchronous_commit": "on", "max_wal_size": "4GB", "autovacuum": "off"}})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, server.Stop(context.Background())) })
	c := &costs{b: b, source: source(b, fingerprint.AsWritten, "/meter", "/value")}
	c.db, err = pgxpool.New(b.Context(), server.DSN("postgres"))
	require.NoError(b, err)
	b.Cleanup(c.db.Close)
	m, err := migrations.New(migrations.Config{Pool: c.db, Side: migrations.Consumer})
	require.NoError(b, err)
	_, err = m.Up(b.Context())
	require.NoError(b, err)
	_, err = c.db.Exec(b.Context(), "CREATE TABLE effects (payload text NOT NULL, sent text NOT NULL)")
	require.NoError(b, err)
	p, err := consumer.New(b.Context(), consumer.Config{Group: "billing", DB: c.db, Classes: []consumer.Class{{Pattern: "*", Window: 24 * time.Hour}, fingerprint.Window("Read", time.Hour)}})
	require.NoError(b, err)
	c.router = consumer.NewRouter(p)
	write := func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		_, err := tx.Exec(ctx, insertEffect, string(ev.Payload))
		return err
	}
	c.router.Tx("Tx", write)
	c.router.Tx("Read", write)
	c.router.Batch("Batch", consumer.BatchOptions{Max: 1000}, write)
	c.router.Func("Func", func(ctx context.Context, ev consumer.Event) error {
		_, err := consumer.Fence(ctx, p, ev, consumer.Effect[int]{Name: "charge", Do: func(context.Context, consumer.Call) (int, error) { return 1, nil }})
		return err
	})
	c.router.AtLeastOnce("AtLeastOnce", func(context.Context, consumer.Event) error { return nil })
	return c
}

// event is a new one, at the next offset of a topic.
func (c *costs) event(eventType string) consumer.Event {
	c.offset++
	ev := consumer.Event{Source: record.Source{Topic: "readings", Offset: c.offset}}
	if eventType == "Read" {
		ev.Event = event(c.b, c.source, fmt.Sprintf(`{"meter":"m-1","value":%d.0,"sent":%q}`, c.offset, strings.Repeat("x", 60)))
		return ev
	}
	key, err := outbox.NewKey("shop")
	require.NoError(c.b, err)
	ev.Event = record.Event{Key: key, Type: eventType, AggregateID: "m-1", Payload: fmt.Appendf(nil, `{"meter":"m-1","value":%d}`, c.offset)}
	return ev
}

func (c *costs) handle(b *testing.B, ev consumer.Event, want consumer.Outcome) {
	b.Helper()
	outcome, err := c.router.Handle(b.Context(), ev)
	require.NoError(b, err)
	require.Equal(b, want, outcome)
}

// run measures rounds of n events each.
func (c *costs) run(name string, n int, round func(b *testing.B)) {
	c.b.Run(name, func(b *testing.B) {
		round(b)
		before, took := c.log(), []time.Duration{}
		for b.Loop() {
			began := time.Now()
			round(b)
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		events := float64(b.N * n)
		b.ReportMetric(float64(took[len(took)/2].Microseconds())/float64(n), "median-µs/event")
		b.ReportMetric(float64(c.log()-before)/events, "wal-B/event")
	})
}

// log is how far the server's log has got.
func (c *costs) log() (bytes int64) {
	require.NoError(c.b, c.db.QueryRow(c.b.Context(), "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").Scan(&bytes))
	return bytes
}

// BenchmarkLayers measures what one delivery costs by the kind of its handler, one after
// the other on one connection: the median of the time, and bytes of the log. Tables is what the
// claims of an event take.
func BenchmarkLayers(b *testing.B) {
	c := newCosts(b)
	c.run("transaction", 1, func(b *testing.B) {
		b.Helper()
		require.NoError(b, pgx.BeginFunc(b.Context(), c.db, func(tx pgx.Tx) error {
			_, err := tx.Exec(b.Context(), insertEffect, "{}")
			return err
		}))
	})
	for _, kind := range []string{"Tx", "Read", "Func", "AtLeastOnce"} {
		c.run(kind, 1, func(b *testing.B) {
			b.Helper()
			c.handle(b, c.event(kind), consumer.Processed)
		})
	}
	for _, kind := range []string{"Tx", "Read", "Func"} {
		ev := c.event(kind)
		c.handle(b, ev, consumer.Processed)
		c.run(kind+"/duplicate", 1, func(b *testing.B) {
			b.Helper()
			ev.Source.Offset++
			c.handle(b, ev, consumer.Duplicate)
		})
	}
	c.run("Batch/100", 100, func(b *testing.B) {
		b.Helper()
		evs := make([]consumer.Event, 100)
		for i := range evs {
			evs[i] = c.event("Batch")
		}
		for _, d := range c.router.HandleBatch(b.Context(), evs) {
			require.NoError(b, d.Err)
		}
	})
	b.Run("normalise", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			c.event("Read")
		}
	})
	for _, class := range []consumer.Keying{consumer.ByEventTime, consumer.ByArrival} {
		rows, size := c.fill(class)
		b.Run("tables/"+string(class), func(b *testing.B) {
			b.ReportMetric(float64(size)/filled, "B/event")
			b.ReportMetric(float64(rows)/filled, "rows/event")
		})
	}
}

// filled is how many events have claims when their tables are measured.
const filled = 200_000

// fill makes the claims of so many events of a class, and returns how many rows they are,
// and what these take with their index.
func (c *costs) fill(class consumer.Keying) (rows, size int64) {
	c.b.Helper()
	ctx := c.b.Context()
	_, err := c.db.Exec(ctx, "TRUNCATE onceward.processed_events")
	require.NoError(c.b, err)
	p, err := consumer.New(ctx, consumer.Config{Group: string(class), DB: c.db, Classes: []consumer.Class{{Pattern: "*", Window: 24 * time.Hour, Keyed: class}}})
	require.NoError(c.b, err)
	r := consumer.NewRouter(p)
	r.BatchSet("OrderPaid", consumer.BatchOptions{Max: 1000}, func(context.Context, pgx.Tx, []consumer.Event) error { return nil })
	for range filled / 1000 {
		evs := make([]consumer.Event, 1000)
		for i := range evs {
			evs[i] = c.event("OrderPaid")
		}
		for _, d := range r.HandleBatch(ctx, evs) {
			require.NoError(c.b, d.Err)
		}
	}
	require.NoError(c.b, c.db.QueryRow(ctx, `SELECT (SELECT count(*) FROM onceward.processed_events),
		(SELECT sum(pg_total_relation_size(inhrelid)) FROM pg_inherits WHERE inhparent = 'onceward.processed_events'::regclass
			AND pg_relation_size(inhrelid) > 0)::bigint`).Scan(&rows, &size))
	return rows, size
}
