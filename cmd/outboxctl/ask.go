package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
)

// ask asks a database and answers.
func ask[R any](c *cli.Context, query func(*operator.Database) (R, error), printed func(*page, R)) error {
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	report, err := query(db)
	if err != nil {
		return err
	}
	return answer(c, report, printed)
}

// prefixed says of an error what failed; without one there is none.
func prefixed(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// order plans what is to be done, asks, has it done and answers.
func order[R any](c *cli.Context, reason string, plan func(*operator.Database) (operator.Order[R], error),
	printed func(*page, R)) error {
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	planned, err := plan(db)
	if err != nil {
		return err
	}
	if err := confirm(c, planned.Question()); err != nil {
		return err
	}
	report, err := planned.CarryOut(c.Context, db, reason)
	if err != nil {
		return err
	}
	return answer(c, report, printed)
}
