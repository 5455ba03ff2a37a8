package outboxdb

import (
	"context"
	"fmt"
)

// AdoptOutbox gives every event the present transaction, as CloseAnew says, and
// returns how many events those are. It runs in a transaction that has LockOutbox.
func (q *Queries) AdoptOutbox(ctx context.Context) (events int64, err error) {
	err = q.withoutRules(ctx, func() error {
		if events, err = q.AdoptRows(ctx); err != nil {
			return fmt.Errorf("write the events anew: %w", err)
		}
		closings, err := q.CloseAnew(ctx)
		if err != nil {
			return fmt.Errorf("look for closed partitions: %w", err)
		}
		for _, sql := range closings {
			if _, err := q.db.Exec(ctx, sql); err != nil {
				return fmt.Errorf("close a partition anew: %w", err)
			}
		}
		return nil
	})
	return events, err
}

// AdoptPartitions gives the events of partitions the present transaction, and
// returns how many those are. It runs in a transaction that has LockOutbox.
func (q *Queries) AdoptPartitions(ctx context.Context, leaves ...AdoptLeafParams) (events int64, err error) {
	if len(leaves) == 0 {
		return 0, nil
	}
	err = q.withoutRules(ctx, func() error {
		for _, leaf := range leaves {
			n, err := q.AdoptLeaf(ctx, leaf)
			if err != nil {
				return fmt.Errorf("write the events of a partition anew: %w", err)
			}
			events += n
		}
		return nil
	})
	return events, err
}

// withoutRules lifts the rules that are not validated while do runs: rows that are
// older than them may break them, and could not be written anew.
func (q *Queries) withoutRules(ctx context.Context, do func() error) error {
	rules, err := q.RulesNotValid(ctx)
	if err != nil {
		return fmt.Errorf("look for rules that old events break: %w", err)
	}
	for _, rule := range rules {
		if _, err := q.db.Exec(ctx, rule.Lift); err != nil {
			return fmt.Errorf("lift the rules that old events break: %w", err)
		}
	}
	if err := do(); err != nil {
		return err
	}
	for _, rule := range rules {
		if rule.PutBack == "" {
			continue
		}
		if _, err := q.db.Exec(ctx, rule.PutBack); err != nil {
			return fmt.Errorf("put back the rules that old events break: %w", err)
		}
	}
	return nil
}
