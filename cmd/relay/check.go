package main

import (
	"errors"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/relay"
	"github.com/onceward/onceward/relay/check"
)

// errChecksFailed makes the exit code of a check that found something wrong.
var errChecksFailed = errors.New("not every precondition is met")

// checkCommand is `relay check`: every precondition on both ends.
func checkCommand(environ []string, stdout io.Writer) *cli.Command {
	return &cli.Command{
		Name:  "check",
		Usage: "look at every precondition on both ends, and say what mends what is wrong",
		Description: "Changes nothing: no slot is made, no topic is created. The exit code is 0 when the relay can\n" +
			"start (there may be warnings) and 3 when it cannot.",
		Flags: append(configFlags(), &cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FORMAT` of the answer: table or json", Value: "table"}),
		Action: func(c *cli.Context) error {
			cfg, err := relay.Load(c.Path("config"), environ, c.StringSlice("set")...)
			if err != nil {
				return err
			}
			verdicts := check.Run(c.Context, &cfg)
			if err := check.Write(stdout, verdicts, c.String("output")); err != nil {
				return err
			}
			if check.Worst(verdicts) == check.Failed {
				return errChecksFailed
			}
			return nil
		},
	}
}
