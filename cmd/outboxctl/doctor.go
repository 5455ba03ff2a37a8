package main

import (
	"os"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator/check"
	"github.com/onceward/onceward/relay/config"
)

// doctorCommand is `outboxctl doctor`: the same engine as `relay check`.
func doctorCommand() *cli.Command {
	return &cli.Command{
		Name:  "doctor",
		Usage: "look at every precondition of a relay on both ends, and say what mends what is wrong",
		Description: "Reads the relay's configuration and looks at PostgreSQL and Kafka as the relay would; it changes\n" +
			"nothing. It connects with the relay's login: FILE's, or that of " + relaysVariable + ", which wins for the\n" +
			"relay, too. The exit code is 3 when the relay could not start or would hold a route.",
		Flags: []cli.Flag{
			ownConfigFlag(),
			outputFlag(),
		},
		Action: func(c *cli.Context) error {
			cfg, err := config.Load(c.Path("config"), os.Environ())
			if err != nil {
				return err
			}
			printer, err := check.NewPrinter(c.App.Writer, c.String("output"))
			if err != nil {
				return usage("%v", err)
			}
			worst := check.Worst(check.Run(c.Context, &cfg, printer.Print))
			if err := printer.End(); err != nil {
				return err
			}
			if worst == check.Failed || worst == check.Held {
				return errWrong
			}
			return nil
		},
	}
}
