package main

import (
	"github.com/urfave/cli/v2"
)

func fencesCommand() *cli.Command {
	one := func(more ...cli.Flag) []cli.Flag {
		return append(append([]cli.Flag{
			&cli.StringFlag{Name: "group", Usage: "the fence of the consumer group `NAME`; needed where several groups have one"},
			&cli.StringFlag{Name: "name", Usage: "the fence called `NAME`; needed where the event has several effects"},
			reasonFlag(), yesFlag(), outputFlag(),
		}, more...), dsnFlags()...)
	}
	return &cli.Command{
		Name:  "fences",
		Usage: "look at effects outside the consumer's database, and settle those whose end nobody knows",
		Description: "A PENDING fence is an effect that was begun. While an attempt holds its lease it is live; when the lease has\n" +
			"run out it is expired, and the next delivery or the recovery job takes it over. Past the time for which the\n" +
			"provider keeps its key it is stale: it is not driven blindly, because the provider would take the key for a\n" +
			"new request. Ask the provider what happened, by the key of `fences show`, and say so with reconcile.",
		Subcommands: []*cli.Command{
			{
				Name: "list", Usage: "list PENDING fences, oldest first",
				Flags: append([]cli.Flag{
					groupFlag(),
					&cli.BoolFlag{Name: "stale", Usage: "only those that wait for an operator: stale, or given up by the recovery job; exit code 3 when there are any"},
					&cli.BoolFlag{Name: "expired", Usage: "only those whose lease has run out"},
					&cli.BoolFlag{Name: "all", Usage: "COMPLETE ones too"},
					&cli.IntFlag{Name: "limit", Value: 100, Usage: "at most `N` fences"},
					outputFlag(),
				}, dsnFlags()...),
				Action: fencesList,
			},
			{
				Name: "show", Usage: "show the fences of an event, and the key that the provider was given", ArgsUsage: "KEY",
				Flags:  append([]cli.Flag{groupFlag(), outputFlag()}, dsnFlags()...),
				Action: fencesShow,
			},
			{
				Name: "reconcile", Usage: "say whether the effect of a PENDING fence was made", ArgsUsage: "KEY",
				Description: "--made completes the fence: deliveries get the result that is given, and the effect is not made again. What\n" +
					"the program's Commit would have written with it is not written: do that by hand where it is needed.\n" +
					"--not-made lets the next delivery, or the recovery job, make it; the provider then keeps its key anew. While a\n" +
					"dead letter of the event waits neither goes on with it: redrive that afterwards.\n" +
					"An attempt whose lease is live is refused: wait for its end, or release it.",
				Flags: one(
					&cli.BoolFlag{Name: "made", Usage: "the effect was made"},
					&cli.BoolFlag{Name: "not-made", Usage: "the effect was not made"},
					&cli.StringFlag{Name: "result", Usage: "with --made: what the program's Do would have returned, as `JSON`; without it duplicates get the zero value"},
					&cli.StringFlag{Name: "type", Usage: "with --made: the event's `TYPE`, where the fence does not keep its event"},
				),
				Action: fencesReconcile,
			},
			{
				Name: "release", Usage: "end the lease of an attempt that is known to be dead, so that the next one need not wait for it", ArgsUsage: "KEY",
				Description: "An attempt that lives on completes nothing afterwards, but its call of the provider may still arrive.",
				Flags:       one(),
				Action:      fencesRelease,
			},
		},
	}
}
