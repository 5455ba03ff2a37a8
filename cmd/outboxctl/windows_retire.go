package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator/windows"
)

func windowsRetire(c *cli.Context) error {
	what, err := readRetire(c)
	if err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	planned, err := windows.PlanRetire(c.Context, db, what)
	if err != nil {
		return err
	}
	question := fmt.Sprintf("retire group %s%s: retention drops claims that only it still needs", what.Group, ofClass(what.Class))
	if what.Topic != nil {
		question = fmt.Sprintf("let the stream time of group %s go on without topic %q; how far it has got there is kept, should it read the topic again", what.Group, *what.Topic)
	}
	if err := confirm(c, question); err != nil {
		return err
	}
	change, err := planned.CarryOut(c.Context, db)
	if err != nil {
		return err
	}
	return answer(c, change, printWindowChange)
}

// readRetire checks what needs no server.
func readRetire(c *cli.Context) (r windows.Retirement, err error) {
	if err := checkOutput(c); err != nil {
		return r, err
	}
	if c.NArg() != 1 {
		return r, usage("%s takes one GROUP, got %d arguments", c.Command.HelpName, c.NArg())
	}
	if c.IsSet("class") && c.IsSet("topic") {
		return r, usage("%s: --class and --topic: give one of them", c.Command.HelpName)
	}
	r.Group, r.Class = c.Args().First(), c.String("class")
	if c.IsSet("topic") {
		topic := c.String("topic")
		r.Topic = &topic
	}
	r.Reason, err = readReason(c)
	return r, err
}
