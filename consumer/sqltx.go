package consumer

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/onceward/onceward/consumer/internal/statement"
)

// ClaimSQL is [Processor.Claim] for database/sql and what is built on it, with
// pgx's stdlib or lib/pq as the driver. Of sqlx, bun and gorm give the *sql.Tx
// inside of their transactions.
func (p *Processor) ClaimSQL(ctx context.Context, tx *sql.Tx, ev Event) (Claim, error) {
	if err := ev.validate(); err != nil {
		return Claim{}, err
	}
	if _, err := tx.ExecContext(ctx, p.bounds.All); err != nil {
		return Claim{}, fmt.Errorf("claim %s: bound the transaction: %w", ev.Key, err)
	}
	return p.claimIn(ctx, statement.OnSQL(tx), ev)
}

// CompleteSQL is [Processor.Complete] for database/sql.
func (p *Processor) CompleteSQL(ctx context.Context, tx *sql.Tx, ev Event, result []byte) error {
	return p.completeOne(ctx, statement.OnSQL(tx), ev, result)
}
