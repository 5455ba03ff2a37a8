package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator/gaps"
)

// decideGap is gap repair and gap accept: it shows what is meant, asks, and has
// the decision written, with who took it, by the database.
func decideGap(c *cli.Context, to string) error {
	id, err := readGapArgument(c)
	if err != nil {
		return err
	}
	reason, err := readReason(c)
	if err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	const shown = 10
	gap, err := gaps.Read(c.Context, db, id, shown)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Command.HelpName, err)
	}
	decision, err := gap.Decide(to)
	if err != nil {
		return err
	}
	if !c.Bool("yes") {
		p := newPage(c, c.App.ErrWriter)
		printGap(p, gap)
		fmt.Fprint(c.App.ErrWriter, p.text.String()) //nolint:errcheck // the question follows
	}
	if err := confirm(c, decision.Question()); err != nil {
		return err
	}
	if err := decision.CarryOut(c.Context, db, reason); err != nil {
		return fmt.Errorf("%s: %w", c.Command.HelpName, err)
	}
	if gap, err = gaps.Read(c.Context, db, id, shown); err != nil {
		return err
	}
	return answer(c, gap, func(p *page, gap *gaps.Gap) {
		p.line("gap %s is %s", id, gap.State)
		if gap.Left != nil {
			p.line("%s", gap.Stands())
		}
		p.line("a relay that streams or is halted by it goes on by itself within half a minute; one whose process has ended, when it is started")
	})
}
