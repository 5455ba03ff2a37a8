package main

import (
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/partitions"
)

func partitionsAdoptCommand() *cli.Command {
	return &cli.Command{
		Name: "adopt", Usage: "have the events published that a partition held when it was attached", ArgsUsage: "PARTITION",
		Description: "Rows that were in a table before it was attached to the outbox are in no log that a relay reads: it stops with\n" +
			"PARTITION_FILLED. This gives each row of the partition a new transaction id. Every relay of the database finds a gap\n" +
			"then, and publishes them as its configuration says, also those that were published before the partition was\n" +
			"detached once, and those that are older than a relay. Producers wait meanwhile. Connect as a member of the role onceward_maintainer.",
		Flags:  append([]cli.Flag{reasonFlag(), yesFlag(), outputFlag()}, dsnFlags()...),
		Action: adoptPartition,
	}
}

func adoptPartition(c *cli.Context) error {
	if err := checkOutput(c); err != nil {
		return err
	}
	if c.NArg() != 1 {
		return usage("%s takes one PARTITION, got %d", c.Command.HelpName, c.NArg())
	}
	reason, err := readReason(c)
	if err != nil {
		return err
	}
	return order(c, reason, func(db *operator.Database) (operator.Order[*partitions.Adopted], error) {
		return partitions.PlanAdopt(c.Context, db, strings.TrimPrefix(c.Args().First(), "onceward."))
	}, func(p *page, r *partitions.Adopted) {
		p.line("of the %s of partition %s none counts as published any more, but those with a dead letter, which it decides; a relay finds a gap "+
			"within half a minute, or when it runs again; one that waits for the decision of another gap, once that is made: `outboxctl gap list`", label.Count(r.Events, "event"), r.Partition)
	})
}
