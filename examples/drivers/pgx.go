package drivers

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/outbox"
)

// payPgx uses pgx: Enqueue takes the pgx.Tx.
func payPgx(ctx context.Context, pool *pgxpool.Pool, p payment) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		result, err := outbox.Enqueue(ctx, tx, paid(p))
		if err != nil || result == outbox.Duplicate {
			return err // a duplicate: the payment is made already
		}
		_, err = tx.Exec(ctx, insertPayment, p.Invoice)
		return err
	})
}

// payAllPgx enqueues many events in one round trip.
func payAllPgx(ctx context.Context, pool *pgxpool.Pool, payments []payment) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		events := make([]outbox.Event, len(payments))
		for i, p := range payments {
			events[i] = paid(p)
		}
		results, err := outbox.EnqueueMany(ctx, tx, events)
		if err != nil {
			return err
		}
		for i, p := range payments {
			if results[i] == outbox.Duplicate {
				continue
			}
			if _, err := tx.Exec(ctx, insertPayment, p.Invoice); err != nil {
				return err
			}
		}
		return nil
	})
}

// payPgxBatch sends event and business statement together, in one round trip. The
// statement cannot wait for the result, so it says itself what a second try does.
func payPgxBatch(ctx context.Context, pool *pgxpool.Pool, p payment) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		batch := new(pgx.Batch)
		if err := outbox.QueueEnqueue(batch, paid(p), nil); err != nil {
			return err
		}
		batch.Queue(`INSERT INTO payments (invoice, key) VALUES ($1, $2) ON CONFLICT (key) DO NOTHING`, p.Invoice, p.Key.String())
		return tx.SendBatch(ctx, batch).Close()
	})
}
