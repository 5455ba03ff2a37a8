//go:build e2e

package outbox_test

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/pgserver"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
)

// byHand is what a service would write itself, with pgx's own ways.
const byHand = `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload, content_type)
VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING`

// benchPool is a pool over an installed outbox: ONCEWARD_TEST_DSN's database,
// which is changed, or a server of its own.
func benchPool(tb testing.TB) *pgxpool.Pool {
	tb.Helper()
	dsn := os.Getenv("ONCEWARD_TEST_DSN")
	if dsn == "" {
		server, err := pgserver.Start(tb.Context(), pgserver.Options{Version: "15", Settings: map[string]string{"fsync": "on"}}) // a commit costs what it costs a user
		require.NoError(tb, err)
		tb.Cleanup(func() { require.NoError(tb, server.Stop(context.Background())) })
		dsn = server.DSN("postgres")
	}
	pool, err := pgxpool.New(tb.Context(), dsn)
	require.NoError(tb, err)
	tb.Cleanup(pool.Close)
	m, err := migrations.New(migrations.Config{Pool: pool, Side: migrations.Outbox})
	require.NoError(tb, err)
	_, err = m.Up(tb.Context())
	require.NoError(tb, err)
	return pool
}

func benchEvent(tb testing.TB) outbox.Event {
	tb.Helper()
	key, err := outbox.NewKey("shop")
	require.NoError(tb, err)
	return outbox.Event{Key: key, AggregateType: "order", AggregateID: "o-1", Type: "OrderPaid", Payload: make([]byte, 350)}
}

func insertByHand(ctx context.Context, tx pgx.Tx, ev outbox.Event) error {
	_, err := tx.Exec(ctx, byHand, ev.Key.UUID(), ev.Key.Namespace(), ev.AggregateType, ev.AggregateID, ev.Type, ev.Payload, outbox.DefaultContentType)
	return err
}

// Compare the sub-benchmarks by their ns/event. One transaction per round of the
// loop; hand and Enqueue write one event in it, the others a hundred.
func BenchmarkEnqueue(b *testing.B) {
	pool := benchPool(b)
	for _, side := range []struct {
		name   string
		events int
		write  func(context.Context, pgx.Tx, []outbox.Event) error
	}{
		{"hand/1", 1, func(ctx context.Context, tx pgx.Tx, evs []outbox.Event) error { return insertByHand(ctx, tx, evs[0]) }},
		{"Enqueue/1", 1, enqueueEach},
		{"EnqueueMany/1", 1, enqueueAll},
		{"hand/100", 100, func(ctx context.Context, tx pgx.Tx, evs []outbox.Event) error {
			for _, ev := range evs {
				if err := insertByHand(ctx, tx, ev); err != nil {
					return err
				}
			}
			return nil
		}},
		{"Enqueue/100", 100, enqueueEach},
		{"EnqueueMany/100", 100, enqueueAll},
		{"QueueEnqueue/100", 100, func(ctx context.Context, tx pgx.Tx, evs []outbox.Event) error {
			var batch pgx.Batch
			for _, ev := range evs {
				if err := outbox.QueueEnqueue(&batch, ev, nil); err != nil {
					return err
				}
			}
			return tx.SendBatch(ctx, &batch).Close()
		}},
		{"function/100", 100, func(ctx context.Context, tx pgx.Tx, evs []outbox.Event) error {
			for _, ev := range evs {
				if _, err := tx.Exec(ctx, `SELECT onceward.enqueue($1, $2, $3, $4, $5)`, ev.Key.String(), ev.AggregateType, ev.AggregateID, ev.Type, ev.Payload); err != nil {
					return err
				}
			}
			return nil
		}},
	} {
		b.Run(side.name, func(b *testing.B) {
			b.ReportAllocs()
			events := make([]outbox.Event, side.events)
			for b.Loop() {
				for i := range events {
					events[i] = benchEvent(b)
				}
				if err := pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error { return side.write(b.Context(), tx, events) }); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*side.events), "ns/event")
		})
	}
}

func enqueueEach(ctx context.Context, tx pgx.Tx, evs []outbox.Event) error {
	for _, ev := range evs {
		if _, err := outbox.Enqueue(ctx, tx, ev); err != nil {
			return err
		}
	}
	return nil
}

func enqueueAll(ctx context.Context, tx pgx.Tx, evs []outbox.Event) error {
	_, err := outbox.EnqueueMany(ctx, tx, evs)
	return err
}

// Time is noise on a shared machine; allocations are not. Enqueue has fewer than
// the bare INSERT in pgx's own ways, because its arguments need no conversion.
func TestEnqueueAllocates(t *testing.T) {
	pool := installed(t)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background())
	events := make([]outbox.Event, 100)
	fresh := func() {
		for i := range events {
			events[i] = benchEvent(t)
		}
	}
	keys := testing.AllocsPerRun(50, fresh)
	measure := func(write func() error) float64 {
		return testing.AllocsPerRun(50, func() {
			fresh()
			if err := write(); err != nil {
				t.Fatal(err)
			}
		}) - keys
	}
	hand := measure(func() error { return insertByHand(t.Context(), tx, events[0]) })
	single := measure(func() error { return enqueueEach(t.Context(), tx, events[:1]) })
	many := measure(func() error { return enqueueAll(t.Context(), tx, events) }) / float64(len(events))
	t.Logf("allocations per event: by hand %.1f, Enqueue %.1f, EnqueueMany of 100 %.1f", hand, single, many)
	require.LessOrEqual(t, single, 20.0)
	require.LessOrEqual(t, single, hand)
	require.LessOrEqual(t, many, 14.0)
}
