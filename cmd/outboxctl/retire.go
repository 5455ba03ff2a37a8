package main

import (
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/binding"
)

func retireCommand() *cli.Command {
	return &cli.Command{
		Name:  "retire",
		Usage: "forget a relay that is gone for good, so that nothing waits for it",
		Description: "Retention keeps what any relay of the database has not published. A relay that was renamed or taken down for\n" +
			"good is forgotten by this command, with its gaps and what it had published. Dead letters that wait are discarded, and\n" +
			"discarded ones stay readable. So is one that was started by mistake and has never begun.\n" +
			"Its slot must be gone: it would pin the log, and a relay that used it would begin anew. A slot of that name in another\n" +
			"database of the server is not its own and is left alone.",
		Flags:  append([]cli.Flag{reasonFlag(), yesFlag()}, relayFlags()...),
		Action: retireRelay,
	}
}

func retireRelay(c *cli.Context) error {
	if err := relayArguments(c); err != nil {
		return err
	}
	reason, err := readReason(c)
	if err != nil {
		return err
	}
	return order(c, reason, func(db *operator.Database) (operator.Order[*binding.Retired], error) {
		return binding.PlanRetire(c.Context, db, c.String("relay"), c.String("slot"))
	}, printRetired)
}

func printRetired(p *page, r *binding.Retired) {
	p.line("relay %s is forgotten; nothing waits for it any more", r.Relay)
	p.line("%s discarded", label.Count(r.Letters, "dead letter that waited is", "dead letters that waited are"))
	if r.SlotOf != "" {
		p.line("slot %s is of database %s and was not this relay's: it stays, leave it alone", r.Slot, r.SlotOf)
	}
	p.line("its publication stays, where it has one: its owner drops it by DROP PUBLICATION IF EXISTS %s;", r.Publication())
}
