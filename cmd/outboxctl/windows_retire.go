package main

import (
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/windows"
)

func windowsRetire(c *cli.Context) error {
	what, reason, err := readRetire(c)
	if err != nil {
		return err
	}
	return order(c, reason, func(db *operator.Database) (operator.Order[*windows.Change], error) {
		return windows.PlanRetire(c.Context, db, what)
	}, printWindowChange)
}

// readRetire checks what needs no server.
func readRetire(c *cli.Context) (r windows.Retirement, reason string, err error) {
	if err := checkOutput(c); err != nil {
		return r, "", err
	}
	if c.NArg() != 1 {
		return r, "", usage("%s takes one GROUP, got %s", c.Command.HelpName, label.Count(c.NArg(), "argument"))
	}
	if c.IsSet("class") && c.IsSet("topic") {
		return r, "", usage("%s: --class and --topic: give one of them", c.Command.HelpName)
	}
	r.Group, r.Class = c.Args().First(), c.String("class")
	if c.IsSet("topic") {
		topic := c.String("topic")
		r.Topic = &topic
	}
	reason, err = readReason(c)
	return r, reason, err
}
