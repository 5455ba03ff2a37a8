package drivers

import (
	"context"
	"database/sql"

	"github.com/onceward/onceward/consumer"
)

// receiveSQL applies an event in a transaction of database/sql, with pgx's stdlib
// or lib/pq as the driver: the claim, the effect and the commit are one.
func receiveSQL(ctx context.Context, db *sql.DB, p *consumer.Processor, ev consumer.Event) (consumer.Outcome, error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	claim, err := p.ClaimSQL(ctx, tx, ev)
	switch {
	case err != nil || claim.Outcome == consumer.InProgress:
		return claim.Outcome, err
	case claim.Outcome != consumer.Processed: // where it came from is remembered
		return claim.Outcome, tx.Commit()
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO receipts (key) VALUES ($1)`, ev.Key.String()); err != nil {
		return 0, err
	}
	if err := p.CompleteSQL(ctx, tx, ev, []byte(`{"receipt": "r-1"}`)); err != nil {
		return 0, err
	}
	return claim.Outcome, tx.Commit()
}
