package outboxdb

import (
	"context"
	"fmt"
)

// AdoptOutbox gives every event and every closed leaf the present transaction, and
// returns how many events those are. It runs in a transaction that has LockOutbox.
// Rules that are not validated are lifted meanwhile: rows that are older than them
// may break them, and could not be written anew.
func (q *Queries) AdoptOutbox(ctx context.Context) (int64, error) {
	rules, err := q.RulesNotValid(ctx)
	if err != nil {
		return 0, fmt.Errorf("look for rules that old events break: %w", err)
	}
	for _, rule := range rules {
		if _, err := q.db.Exec(ctx, rule.Lift); err != nil {
			return 0, fmt.Errorf("lift the rules that old events break: %w", err)
		}
	}
	events, err := q.AdoptRows(ctx)
	if err != nil {
		return 0, fmt.Errorf("write the events anew: %w", err)
	}
	closings, err := q.CloseAnew(ctx)
	if err != nil {
		return 0, fmt.Errorf("look for closed partitions: %w", err)
	}
	for _, rule := range rules {
		if rule.PutBack != "" {
			closings = append(closings, rule.PutBack)
		}
	}
	for _, sql := range closings {
		if _, err := q.db.Exec(ctx, sql); err != nil {
			return 0, fmt.Errorf("put back what was lifted: %w", err)
		}
	}
	return events, nil
}
