package drivers

import (
	"context"
	"database/sql"

	"github.com/onceward/onceward/outbox"
)

// paySQL uses database/sql, with pgx's stdlib or lib/pq as the driver: EnqueueSQL
// takes the *sql.Tx.
func paySQL(ctx context.Context, db *sql.DB, p payment) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	result, err := outbox.EnqueueSQL(ctx, tx, paid(p))
	if err != nil || result == outbox.Duplicate {
		return err
	}
	if _, err := tx.ExecContext(ctx, insertPayment, p.Invoice); err != nil {
		return err
	}
	return tx.Commit()
}
