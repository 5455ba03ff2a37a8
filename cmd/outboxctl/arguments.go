package main

import (
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/secret"
)

// noArgument refuses positional arguments; instead says what may be meant, or is
// empty.
func noArgument(c *cli.Context, instead string) error {
	if !c.Args().Present() {
		return nil
	}
	if instead != "" {
		instead = "; " + instead
	}
	return usage("%s takes no argument, got %s%s", c.Command.HelpName, secret.Argument(c.Args().First()), instead)
}

// checkLimit checks --limit, of what is listed.
func checkLimit(c *cli.Context) error {
	if c.Int("limit") < 1 || c.Int("limit") > operator.MaxListed {
		return usage("--limit %d: want 1 to %d", c.Int("limit"), operator.MaxListed)
	}
	return nil
}
