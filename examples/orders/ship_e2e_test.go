//go:build e2e

package orders_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/consumertest"
	"github.com/onceward/onceward/examples/orders"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/outbox"
)

// An order is shipped once, however its event comes and wherever the process dies.
func TestShipOnce(t *testing.T) {
	consumertest.Exercise(t, consumertest.Service{
		DSN: testdb.New(t, "15").Config().ConnString(),
		Prepare: func(ctx context.Context, db *pgxpool.Pool) error {
			_, err := db.Exec(ctx, orders.Schema)
			return err
		},
		Start: func(ctx context.Context, db *pgxpool.Pool) (*consumer.Router, error) {
			p, err := consumer.New(ctx, consumer.Config{Group: "shipping", DB: db})
			if err != nil {
				return nil, err
			}
			r := consumer.NewRouter(p)
			orders.Register(r)
			return r, nil
		},
		Event: func(n int) outbox.Event {
			o := orders.Order{ID: fmt.Sprintf("o-%d", n), Customer: fmt.Sprintf("c-%d", n), Cents: 1000}
			body, err := json.Marshal(o)
			require.NoError(t, err)
			return outbox.Event{AggregateType: orders.AggregateType, AggregateID: o.Customer, Type: orders.TypePlaced, Payload: body}
		},
		Effects: consumertest.Rows("SELECT 'shipment of', order_id FROM shipments"),
	})
}
