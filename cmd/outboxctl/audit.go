package main

import (
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/audit"
)

func auditCommand() *cli.Command {
	return &cli.Command{
		Name:  "audit",
		Usage: "check in the consumer's database what must hold; exit code 3 when something does not, or was not looked at",
		Description: "It reads the catalog, the newest claims of each partition, and what indexes find: no DEFAULT partition, no hole,\n" +
			"no claim below the floor of its class, no key twice, each dead event with its letter, no effect without an end.\n" +
			"It changes nothing, ends within minutes on tables of any size, and may run at any time.",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "group", Usage: "say of claims, letters, fences and windows only what is of the consumer group `NAME`; default: all"},
			outputFlag(),
		}, dsnFlags()...),
		Action: auditAll,
	}
}

func auditAll(c *cli.Context) error {
	if err := checkOutput(c); err != nil {
		return err
	}
	if err := noArgument(c, "to name a group: --group"); err != nil {
		return err
	}
	return ask(c, func(db *operator.Database) (*audit.Report, error) {
		return audit.Read(c.Context, db, c.String("group"))
	}, printAudit)
}

func printAudit(p *page, r *audit.Report) {
	for _, f := range r.Findings {
		p.line("! %s", f)
	}
	for _, cut := range r.Unfinished {
		p.line("! %s", audit.NotFinished(cut))
	}
	if !r.Wrong() {
		p.line("nothing is wrong")
	}
}
