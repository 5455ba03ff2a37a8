package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/claims"
)

func processedForget(c *cli.Context) error {
	key, group, reason, err := readOneOfGroup(c)
	if err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	order, nothing, err := claims.PlanForget(c.Context, db, key, group)
	switch {
	case err != nil:
		return fmt.Errorf("processed forget %s: %w", key, err)
	case order == nil:
		nothing.Reason = reason
		return answer(c, nothing, printForgotten)
	}
	if err := order.Forgettable(); err != nil {
		return err
	}
	if err := confirm(c, order.Question()); err != nil {
		return err
	}
	report, err := order.CarryOut(c.Context, db, reason)
	if err != nil {
		return fmt.Errorf("processed forget %s: %w", key, err)
	}
	return answer(c, report, printForgotten)
}

// readOneOfGroup checks what needs no server, of commands about one event of
// one group.
func readOneOfGroup(c *cli.Context) (key operator.Name, group, reason string, err error) {
	if key, err = readOneName(c); err != nil {
		return key, "", "", err
	}
	if group = c.String("group"); group == "" {
		return key, "", "", usage("%s: --group is missing; want the name of a consumer group", c.Command.HelpName)
	}
	reason, err = readReason(c)
	return key, group, reason, err
}

func printForgotten(p *page, r *claims.Forgotten) {
	if len(r.Forgotten) == 0 {
		p.line("group %s has no claim on %s; nothing was forgotten", r.Group, r.Key)
	} else {
		p.line("group %s has forgotten %s", r.Group, r.Key)
	}
	for _, note := range r.Notes {
		p.line("%s", note)
	}
}
