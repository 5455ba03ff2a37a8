package drivers

import (
	"context"

	"gorm.io/gorm"

	"github.com/onceward/onceward/outbox"
)

// paymentRow is the business row as gorm sees it.
type paymentRow struct{ Invoice string }

// TableName is asked for by gorm.
func (paymentRow) TableName() string { return "payments" }

// payGorm uses gorm: EnqueueSQL takes the ConnPool of the transaction, which is the
// *sql.Tx (or gorm's own around it, with PrepareStmt). Outside of Transaction the
// ConnPool is the pool, and EnqueueSQL refuses it.
func payGorm(ctx context.Context, db *gorm.DB, p payment) error {
	return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		result, err := outbox.EnqueueSQL(ctx, tx.Statement.ConnPool, paid(p))
		if err != nil || result == outbox.Duplicate {
			return err
		}
		return tx.Create(&paymentRow{Invoice: p.Invoice}).Error
	})
}
