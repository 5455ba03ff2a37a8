package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/letters"
	"github.com/onceward/onceward/internal/operator/states"
)

func deadRetry(c *cli.Context) error {
	if c.Bool("only") {
		return usage("dead retry: there is no --only any more: a letter out of its aggregate's order would reach consumers before older events. " +
			"Without it, KEY publishes all that waits of its aggregate, oldest first; `outboxctl dead discard KEY --reason \"…\"` gives up those before it that are not wanted")
	}
	filter, reason, db, err := readCommand(c)
	if err != nil {
		return err
	}
	defer db.Close()
	order, nothing, err := letters.PlanRetry(c.Context, db, filter)
	if order == nil {
		return answerNothing(c, nothing, err)
	}
	what := "publish " + label.Count(order.Count(), "dead letter")
	if order.Aggregates > 0 {
		what += ", all that wait of " + label.Count(order.Aggregates, "aggregate")
	}
	return give(c, db, what, reason, order)
}

func deadDiscard(c *cli.Context) error {
	filter, reason, db, err := readCommand(c)
	if err != nil {
		return err
	}
	defer db.Close()
	order, nothing, err := letters.PlanDiscard(c.Context, db, filter)
	if order == nil {
		return answerNothing(c, nothing, err)
	}
	return give(c, db, fmt.Sprintf("give up %s for good", label.Count(order.Count(), "dead letter")), reason, order)
}

// readCommand checks what needs no server, of retry and discard, and connects.
func readCommand(c *cli.Context) (f letters.Filter, reason string, db *operator.Database, err error) {
	if err := checkOutput(c); err != nil {
		return f, "", nil, err
	}
	if f.Selection, err = readSelection(c); err != nil {
		return f, "", nil, err
	}
	f.Class = c.String("class")
	chosen := len(f.Keys) > 0 || f.Filtered() || f.Class != ""
	if err := checkChoice(c, chosen, "KEYs", "--aggregate, --type or --class"); err != nil {
		return f, "", nil, err
	}
	if reason, err = readReason(c); err == nil {
		db, err = connect(c)
	}
	return f, reason, db, err
}

// checkChoice refuses an order that names neither letters nor all of them, or both, and
// a wait below zero. Names and filters are the ways to name some.
func checkChoice(c *cli.Context, chosen bool, names, filters string) error {
	switch {
	case !chosen && !c.Bool("all"):
		return usage("%s: say which letters: %s, filters such as %s, or --all", c.Command.HelpName, names, filters)
	case chosen && c.Bool("all"):
		return usage("%s: --all goes without %s and filters; leave --all out, and all that they match is meant", c.Command.HelpName, names)
	}
	return checkWait(c)
}

func checkWait(c *cli.Context) error {
	if c.Duration("wait") < 0 {
		return usage("--wait %s: want 0 or more", c.Duration("wait"))
	}
	return nil
}

// answerNothing answers where there is nothing to do; a KEY without a waiting letter is
// wrong.
func answerNothing(c *cli.Context, report *letters.Became, err error) error {
	if err != nil {
		return err
	}
	return answer(c, report, printDecided)
}

// give asks, gives the order, waits and answers.
func give(c *cli.Context, db *operator.Database, what, reason string, order *letters.Order) error {
	if err := confirm(c, what); err != nil {
		return err
	}
	if err := order.Give(c.Context, db, reason); err != nil {
		return fmt.Errorf("%s: %w", c.Command.HelpName, err)
	}
	report, err := order.Await(c.Context, db, c.Duration("wait"))
	if err != nil {
		return err
	}
	return answer(c, report, printDecided)
}

// maxOutcomes are shown to a person one by one.
const maxOutcomes = 50

// printOutcomes counts what became of the letters, and shows the first of them.
func printOutcomes(p *page, action string, outcomes, heading []string, row func(i int) []string) {
	counts := make(map[string]int)
	var rows [][]string
	for i, outcome := range outcomes {
		counts[outcome]++
		if i < maxOutcomes {
			rows = append(rows, row(i))
		}
	}
	p.line("%s of %s: %d done, %d pending, %d failed", action, label.Count(len(outcomes), "letter"), counts[states.OutcomeDone], counts[states.OutcomePending], counts[states.OutcomeFailed])
	p.table(heading, rows)
	if len(outcomes) > maxOutcomes {
		p.line("\nthe first %d are shown; --output json has all", maxOutcomes)
	}
}

// printNothing says why nothing was ordered, or decided, of no letters or because of
// problems; false: something was.
func printNothing(p *page, done string, problems []operator.Problem, found int) bool {
	for _, problem := range problems {
		p.line("! %s", problem)
	}
	switch {
	case len(problems) > 0:
		p.line("nothing was %s", done)
	case found == 0:
		p.line("no letter waits that is meant; nothing was %s", done)
	default:
		return false
	}
	return true
}

func printDecided(p *page, r *letters.Became) {
	if printNothing(p, "ordered", r.Problems, len(r.Letters)) {
		return
	}
	printOutcomes(p, r.Action, r.Outcomes(), []string{"key", "slot?", "outcome", "detail…"}, func(i int) []string {
		l := r.Letters[i]
		return []string{l.Key, l.Slot, l.Outcome, whole(l.Detail)}
	})
	for i, l := range r.Left {
		if i == maxOutcomes {
			break
		}
		of := " of the aggregate " + short(l.AggregateType+" "+l.AggregateID)
		p.line("\n%s: `outboxctl dead retry %s --reason \"…\"` publishes %s",
			label.Count(l.Letters, "letter"+of+" still waits", "letters"+of+" still wait"), l.Key, map[bool]string{true: "it", false: "them"}[l.Letters == 1])
	}
	for _, relay := range r.Relays {
		p.line("\n%s", relay)
	}
}
