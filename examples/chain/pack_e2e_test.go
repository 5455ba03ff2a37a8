//go:build e2e

package chain_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/consumertest"
	"github.com/onceward/onceward/examples/chain"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

func TestMain(m *testing.M) { os.Exit(testdb.Main(m)) }

// One event that comes five times at once, and once more, is followed by one event.
// One whose row is refused leaves nothing: no next event, no claim.
func TestOneNextEvent(t *testing.T) {
	db := testdb.New(t, "15")
	for _, side := range []migrations.Side{migrations.Outbox, migrations.Consumer} {
		m, err := migrations.New(migrations.Config{Pool: db, Side: side})
		require.NoError(t, err)
		_, err = m.Up(t.Context())
		require.NoError(t, err)
	}
	_, err := db.Exec(t.Context(), chain.Schema)
	require.NoError(t, err)
	processor, err := consumer.New(t.Context(), consumer.Config{Group: "warehouse", DB: db})
	require.NoError(t, err)
	router := consumer.NewRouter(processor)
	chain.Register(router)
	placed := func(payload string) consumer.Event {
		key, err := outbox.NewKey("shop")
		require.NoError(t, err)
		return consumer.Event{Event: record.Event{Key: key, Type: chain.TypePlaced, Payload: []byte(payload)}}
	}

	_, err = db.Exec(t.Context(), `ALTER TABLE parcels ADD CONSTRAINT refused CHECK (order_id <> 'o-0')`)
	require.NoError(t, err)
	_, err = router.Handle(t.Context(), placed(`{"id":"o-0"}`))
	require.ErrorContains(t, err, "refused")
	ev := placed(`{"id":"o-1"}`)
	errs := make(chan error)
	for range 5 {
		go func() {
			_, err := router.Handle(t.Context(), ev)
			errs <- err
		}()
	}
	for range 5 {
		require.NoError(t, <-errs)
	}
	outcome, err := router.Handle(t.Context(), ev)
	require.NoError(t, err)
	require.Equal(t, consumer.Duplicate, outcome)
	for sql, want := range map[string]int{
		"SELECT count(*) FROM parcels": 1,
		"SELECT count(*) FROM onceward.outbox WHERE event_type = 'ParcelPacked' AND aggregate_id = 'o-1'": 1,
		"SELECT count(*) FROM onceward.outbox":           1,
		"SELECT count(*) FROM onceward.processed_events": 1,
	} {
		var got int
		require.NoError(t, db.QueryRow(t.Context(), sql).Scan(&got))
		require.Equal(t, want, got, sql)
	}
}

// However the event comes, and wherever the process dies: one parcel, and one next event.
func TestPackOnce(t *testing.T) {
	consumertest.Exercise(t, consumertest.Service{
		DSN: testdb.New(t, "15").Config().ConnString(),
		Prepare: func(ctx context.Context, db *pgxpool.Pool) error {
			m, err := migrations.New(migrations.Config{Pool: db, Side: migrations.Outbox})
			if err == nil {
				_, err = m.Up(ctx)
			}
			if err == nil {
				_, err = db.Exec(ctx, chain.Schema)
			}
			return err
		},
		Start: func(ctx context.Context, db *pgxpool.Pool) (*consumer.Router, error) {
			p, err := consumer.New(ctx, consumer.Config{Group: "warehouse", DB: db})
			if err != nil {
				return nil, err
			}
			r := consumer.NewRouter(p)
			chain.Register(r)
			return r, nil
		},
		Event: func(n int) outbox.Event {
			id := fmt.Sprintf("o-%d", n)
			return outbox.Event{AggregateType: "order", AggregateID: id, Type: chain.TypePlaced, Payload: fmt.Appendf(nil, `{"id":%q}`, id)}
		},
		Effects: consumertest.Rows(`SELECT 'parcel', order_id FROM parcels UNION ALL
			SELECT event_type, aggregate_id FROM onceward.outbox`),
	})
}
