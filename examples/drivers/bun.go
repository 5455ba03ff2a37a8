package drivers

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/onceward/onceward/outbox"
)

// bunPayment is the business row as bun sees it.
type bunPayment struct {
	bun.BaseModel `bun:"table:payments"`
	Invoice       string
}

// payBun uses bun: EnqueueSQL takes tx.Tx, the *sql.Tx inside of bun.Tx. With
// bun.Tx itself, which replaces placeholders in its own way, PostgreSQL refuses the
// statement, and the error says to give the *sql.Tx.
func payBun(ctx context.Context, db *bun.DB, p payment) error {
	return db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		result, err := outbox.EnqueueSQL(ctx, tx.Tx, paid(p))
		if err != nil || result == outbox.Duplicate {
			return err
		}
		_, err = tx.NewInsert().Model(&bunPayment{Invoice: p.Invoice}).Exec(ctx)
		return err
	})
}
