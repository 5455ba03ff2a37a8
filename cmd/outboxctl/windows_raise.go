package main

import (
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/windows"
)

func raiseCommand(flags []cli.Flag) *cli.Command {
	return &cli.Command{
		Name: "raise", Usage: "raise a floor that lies below where claims are kept, as audit finds it", ArgsUsage: "GROUP CLASS",
		Description: "It is set to the day of the oldest partition, or to where retention has dropped claims, whichever is later. What\n" +
			"is detached is to be attached again instead. It needs the role onceward_consumer_maintainer.",
		Flags:  flags,
		Action: windowsRaise,
	}
}

func windowsRaise(c *cli.Context) error {
	group, class, reason, err := readRaise(c)
	if err != nil {
		return err
	}
	return order(c, reason, func(db *operator.Database) (operator.Order[*windows.Change], error) {
		return windows.PlanRaise(c.Context, db, group, class)
	}, printWindowChange)
}

// readRaise checks what needs no server.
func readRaise(c *cli.Context) (group, class, reason string, err error) {
	if err := checkOutput(c); err != nil {
		return "", "", "", err
	}
	if c.NArg() != 2 {
		return "", "", "", usage("%s takes GROUP and CLASS, got %s; quote a class that ends with *", c.Command.HelpName, label.Count(c.NArg(), "argument"))
	}
	reason, err = readReason(c)
	return c.Args().Get(0), c.Args().Get(1), reason, err
}
