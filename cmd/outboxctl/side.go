package main

import (
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/migrations"
)

// sideFlag chooses between the two kinds of letters.
func sideFlag(side migrations.Side) cli.Flag {
	return &cli.StringFlag{Name: "side", Value: string(side), Usage: "`SIDE` of the letters: outbox (the relay's) or consumer (those of consumer groups)"}
}

// ofSide marks flags as those of one side: the help groups them, and bySide
// refuses them on the other.
func ofSide(side migrations.Side, flags ...cli.Flag) []cli.Flag {
	for _, f := range flags {
		switch f := f.(type) {
		case *cli.StringFlag:
			f.Category = onlyOf(side)
		case *cli.DurationFlag:
			f.Category = onlyOf(side)
		}
	}
	return flags
}

func onlyOf(side migrations.Side) string { return "Only with --side " + string(side) }

// without leaves a flag out.
func without(name string, flags []cli.Flag) []cli.Flag {
	return slices.DeleteFunc(flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) })
}

// bySide runs what the command does on the side that is meant; nil where it
// does not exist.
func bySide(outbox, consumer cli.ActionFunc) cli.ActionFunc {
	return func(c *cli.Context) error {
		side, err := migrations.ParseSide(c.String("side"))
		if err != nil {
			return usage("--%v", err)
		}
		action, other := outbox, migrations.Consumer
		if side == migrations.Consumer {
			action, other = consumer, migrations.Outbox
		}
		if action == nil {
			return usage("%s is nothing for --side %s; letters that were not published are retried, edited or discarded, those of consumer groups redriven or discarded",
				c.Command.HelpName, side)
		}
		for _, f := range c.Command.Flags {
			if v, ok := f.(cli.CategorizableFlag); ok && v.GetCategory() == onlyOf(other) && c.IsSet(f.Names()[0]) {
				return usage("--%s is only for --side %s", f.Names()[0], other)
			}
		}
		return action(c)
	}
}
