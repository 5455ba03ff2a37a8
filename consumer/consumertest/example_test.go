package consumertest_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/consumertest"
	"github.com/onceward/onceward/outbox"
)

// A test of a service whose handler writes a receipt for each payment.
func ExampleExercise() {
	// main calls it, too.
	start := func(ctx context.Context, db *pgxpool.Pool) (*consumer.Router, error) {
		p, err := consumer.New(ctx, consumer.Config{Group: "receipts", DB: db})
		if err != nil {
			return nil, err
		}
		r := consumer.NewRouter(p)
		r.Tx("InvoicePaid", func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
			_, err := tx.Exec(ctx, "INSERT INTO receipts VALUES ($1, $2)", ev.AggregateID, ev.Payload)
			return err
		})
		return r, nil
	}
	_ = func(t *testing.T) {
		consumertest.Exercise(t, consumertest.Service{
			DSN: os.Getenv("TEST_DSN"), // of a login that may make databases
			Prepare: func(ctx context.Context, db *pgxpool.Pool) error {
				_, err := db.Exec(ctx, "CREATE TABLE receipts (invoice text, body bytea)")
				return err
			},
			Start: start,
			Event: func(n int) outbox.Event {
				return outbox.Event{
					AggregateType: "invoice", AggregateID: fmt.Sprintf("inv-%d", n), Type: "InvoicePaid", Payload: []byte(`{"cents":4200}`),
				}
			},
			Effects: consumertest.Rows("SELECT 'receipt of', invoice FROM receipts"),
		})
	}
}
