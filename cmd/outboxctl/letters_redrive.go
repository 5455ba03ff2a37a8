package main

import (
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator/letters"
	"github.com/onceward/onceward/internal/operator/states"
)

func lettersRedrive(c *cli.Context) error { return decide(c, letters.Redrive) }
func lettersDiscard(c *cli.Context) error { return decide(c, letters.Discard) }

// decide asks, writes in small transactions, waits where there is something to
// wait for, and answers.
func decide(c *cli.Context, d letters.Decision) error {
	s, reason, err := readDecision(c)
	if err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	order, nothing, err := letters.PlanDecision(c.Context, db, d, s)
	switch {
	case err != nil:
		return err
	case order == nil:
		return answer(c, nothing, printRedriven)
	}
	if err := confirm(c, order.Question()); err != nil {
		return err
	}
	line := newProgress(c.App.ErrWriter, "decided", order.Count())
	err = order.Give(c.Context, db, reason, line.show)
	line.end()
	if err != nil {
		return fmt.Errorf("%s: %w", c.Command.HelpName, err)
	}
	tell := func(waiting string) { fmt.Fprintln(c.App.ErrWriter, waiting) } //nolint:errcheck // a terminal that is gone
	report, err := order.Await(c.Context, db, c.Duration("wait"), tell)
	if err != nil {
		return err
	}
	return answer(c, report, printRedriven)
}

// readDecision checks what needs no server.
func readDecision(c *cli.Context) (s letters.GroupFilter, reason string, err error) {
	if s, err = readLetterSelection(c); err != nil {
		return s, "", err
	}
	if err := checkChoice(c, s.Chosen(), "PLACEs, KEYs", "--group, --cause or --type"); err != nil {
		return s, "", err
	}
	reason, err = readReason(c)
	return s, reason, err
}

func printRedriven(p *page, r *letters.GroupBecame) {
	if printNothing(p, "decided", r.Problems, len(r.Letters)) {
		return
	}
	printOutcomes(p, r.Action, r.Outcomes(), []string{"group", "place", "key?", "outcome", "detail…"}, func(i int) []string {
		l := r.Letters[i]
		return []string{l.Group, l.Place, orDash(l.Key), l.Outcome, whole(l.Detail)}
	})
	if slices.Contains(r.Outcomes(), states.OutcomePending) {
		p.line("\na member of the group handles what is pending when one runs; the request stands")
	}
}
