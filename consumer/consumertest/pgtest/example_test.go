package pgtest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/consumertest"
	"github.com/onceward/onceward/consumer/consumertest/pgtest"
	"github.com/onceward/onceward/outbox"
)

// A test of a service on a machine without a PostgreSQL.
func ExampleStart() {
	handle := func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		_, err := tx.Exec(ctx, "INSERT INTO receipts VALUES ($1, $2)", ev.AggregateID, ev.Payload)
		return err
	}
	_ = func(t *testing.T) {
		consumertest.Exercise(t, receipts(pgtest.Start(t), handle))
	}
}

// receipts is a service that handles payments in its transaction.
func receipts(dsn string, handle consumer.TxHandler) consumertest.Service {
	return consumertest.Service{
		DSN: dsn,
		Prepare: func(ctx context.Context, db *pgxpool.Pool) error {
			_, err := db.Exec(ctx, "CREATE TABLE receipts (invoice text, body bytea)")
			return err
		},
		Start: func(ctx context.Context, db *pgxpool.Pool) (*consumer.Router, error) {
			p, err := consumer.New(ctx, consumer.Config{Group: "receipts", DB: db})
			if err != nil {
				return nil, err
			}
			r := consumer.NewRouter(p)
			r.Tx("InvoicePaid", handle)
			return r, nil
		},
		Event: func(n int) outbox.Event {
			return outbox.Event{AggregateType: "invoice", AggregateID: fmt.Sprintf("inv-%d", n), Type: "InvoicePaid", Payload: []byte(`{"cents":4200}`)}
		},
		Effects: consumertest.Rows("SELECT 'receipt of', invoice FROM receipts"),
	}
}
