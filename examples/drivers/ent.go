package drivers

import (
	"context"
	"fmt"

	entsql "entgo.io/ent/dialect/sql"

	"github.com/onceward/onceward/outbox"
)

// payEnt uses ent at the level of its driver, since generated code would fill this
// folder. What a service does with its generated client comes down to the same:
//
//   - generate with `--feature sql/execquery`; then *ent.Tx has ExecContext and
//     QueryContext and is what EnqueueSQL takes: outbox.EnqueueSQL(ctx, tx, ev);
//   - a *ent.Client has them too, and is refused, since it is no transaction.
//
// Only the driver's transaction is tested here, which both stand on.
func payEnt(ctx context.Context, driver *entsql.Driver, p payment) error {
	begun, err := driver.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer begun.Rollback() //nolint:errcheck // after Commit it does nothing
	tx, ok := begun.(outbox.SQLTx)
	if !ok {
		return fmt.Errorf("ent's transaction %T has no ExecContext and QueryContext", begun)
	}
	result, err := outbox.EnqueueSQL(ctx, tx, paid(p))
	if err != nil || result == outbox.Duplicate {
		return err
	}
	insert := entsql.Dialect(driver.Dialect()).Insert("payments").Columns("invoice").Values(p.Invoice)
	query, args := insert.Query()
	if err := begun.Exec(ctx, query, args, nil); err != nil {
		return err
	}
	return begun.Commit()
}
