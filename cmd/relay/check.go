package main

import (
	"errors"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator/check"
	"github.com/onceward/onceward/relay/config"
)

// errChecksFailed makes the exit code of a check that found something wrong.
var errChecksFailed = errors.New("not every precondition is met")

// checkCommand is `relay check`: every precondition on both ends.
func checkCommand(environ []string, stdout io.Writer) *cli.Command {
	return &cli.Command{
		Name:  "check",
		Usage: "look at every precondition on both ends, and say what mends what is wrong",
		Description: "Changes nothing: no slot is made, no topic is created. Decides what `run` decides at its start. The\n" +
			"exit code is 0 when the relay can start, also with warnings or with routes that it would hold, and 3 when\n" +
			"it cannot, stands halted, or when nobody can write. Each check waits for an answer for up to 10 s.",
		Flags: append(configFlags(), &cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FORMAT` of the answer: table, wide (as wide as needed, also at a terminal) or json", Value: "table"}),
		Action: func(c *cli.Context) error {
			cfg, err := config.Load(c.Path("config"), environ, c.StringSlice("set")...)
			if err != nil {
				return err
			}
			printer, err := check.NewPrinter(stdout, c.String("output"))
			if err != nil {
				return err
			}
			verdicts := check.Run(c.Context, &cfg, printer.Print)
			if err := printer.End(); err != nil {
				return err
			}
			if check.Worst(verdicts) == check.Failed {
				return errChecksFailed
			}
			return nil
		},
	}
}
