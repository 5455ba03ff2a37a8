package drivers

import (
	"context"

	"github.com/jmoiron/sqlx"

	"github.com/onceward/onceward/outbox"
)

// paySqlx uses sqlx: EnqueueSQL takes the *sqlx.Tx.
func paySqlx(ctx context.Context, db *sqlx.DB, p payment) error {
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	result, err := outbox.EnqueueSQL(ctx, tx, paid(p))
	if err != nil || result == outbox.Duplicate {
		return err
	}
	if _, err := tx.NamedExecContext(ctx, `INSERT INTO payments (invoice) VALUES (:invoice)`, map[string]any{"invoice": p.Invoice}); err != nil {
		return err
	}
	return tx.Commit()
}
