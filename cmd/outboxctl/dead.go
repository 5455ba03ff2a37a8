package main

import (
	"time"

	"github.com/urfave/cli/v2"
)

func deadCommand() *cli.Command {
	write := func(more ...cli.Flag) []cli.Flag {
		return append(append([]cli.Flag{
			reasonFlag(),
			&cli.DurationFlag{Name: "wait", Value: 10 * time.Second, Usage: "wait for the relay to act, at most for `TIME`; 0 does not wait"},
			yesFlag(), outputFlag(),
		}, more...), dsnFlags()...)
	}
	letters := selectionFlags("parked")
	return &cli.Command{
		Name:  "dead",
		Usage: "look at dead letters: events that could not be published; publish, change or discard them",
		Description: "An event that can never be published, or that stands behind such a one of its aggregate, becomes a dead\n" +
			"letter. The relay is the only writer of letters: retry, edit and discard are orders that it reads from the\n" +
			"stream, in commit order, and so never before what was committed before them.",
		Subcommands: []*cli.Command{
			{
				Name: "list", Usage: "list letters, oldest first",
				Flags: append(append([]cli.Flag{
					&cli.StringSliceFlag{Name: "state", Value: cli.NewStringSlice(letterOpen, letterRetrying), Usage: "letters in `STATE`: open, retrying, replayed, discarded or all"},
					&cli.StringFlag{Name: "class", Usage: "only those refused for an error of `CLASS`"},
					&cli.StringFlag{Name: "slot", Usage: "only those of the relay with slot `NAME`"},
					&cli.IntFlag{Name: "limit", Value: 100, Usage: "at most `N` letters"},
					outputFlag(),
				}, letters...), dsnFlags()...),
				Action: deadList,
			},
			{
				Name: "show", Usage: "show one letter whole: content, reason, what was decided", ArgsUsage: "KEY",
				Flags:  append([]cli.Flag{outputFlag(), &cli.BoolFlag{Name: "payload", Usage: "print the whole payload (in JSON as base64), not only how it begins"}}, dsnFlags()...),
				Action: deadShow,
			},
			{
				Name: "retry", Usage: "publish letters, together with what waits behind them", ArgsUsage: "[KEY…]",
				Description: "KEYs and filters pick aggregates: all waiting letters of each go out, in their order, and then the\n" +
					"aggregate's events are published as before. What is still wrong becomes a letter again.",
				Flags:  write(append([]cli.Flag{onlyFlag(), classFlag(), allFlag()}, letters...)...),
				Action: deadRetry,
			},
			{
				Name: "edit", Usage: "change a letter's payload or headers, before a retry", ArgsUsage: "KEY",
				Description: "The key stays: consumers take the changed event for the original one.",
				Flags:       write(editFlags()...),
				Action:      deadEdit,
			},
			{
				Name: "discard", Usage: "give letters up for good", ArgsUsage: "[KEY…]",
				Description: "A discarded event is not published; `outboxctl replay --dead` can bring it back. A halted relay reads\n" +
					"no orders: tell it with `outboxctl skip`.",
				Flags:  write(append([]cli.Flag{classFlag(), allFlag()}, letters...)...),
				Action: deadDiscard,
			},
		},
	}
}

func onlyFlag() cli.Flag {
	return &cli.BoolFlag{Name: "only", Usage: "exactly these letters, even where others of the aggregate come before them"}
}

func classFlag() cli.Flag {
	return &cli.StringFlag{Name: "class", Usage: "only those refused for an error of `CLASS`"}
}

func allFlag() cli.Flag {
	return &cli.BoolFlag{Name: "all", Usage: "all letters that wait"}
}
