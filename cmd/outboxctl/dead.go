package main

import (
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/migrations"
)

func deadCommand() *cli.Command {
	return &cli.Command{
		Name:  "dead",
		Usage: "look at dead letters: events that could not be published, or that a consumer group could not apply; decide what becomes of them",
		Description: "An event that can never be published, or that stands behind such a one of its aggregate, becomes a dead\n" +
			"letter. The relay is the only writer of letters: retry, edit and discard are orders that it reads from the\n" +
			"stream, in commit order, and so never before what was committed before them.\n\n" +
			"With --side consumer the letters are those of the consumer's database: messages that a group could not apply.\n" +
			"They are named by their PLACE, topic/partition@offset, or by the event's KEY, and --group where several groups\n" +
			"have one; redrive makes the group handle them again.",
		Subcommands: []*cli.Command{deadListCommand(), deadShowCommand(), deadRetryCommand(), deadRedriveCommand(),
			deadEditCommand(), deadDiscardCommand()},
	}
}

func deadListCommand() *cli.Command {
	flags := append([]cli.Flag{
		sideFlag(migrations.Outbox),
		&cli.StringSliceFlag{
			Name: "state", Value: cli.NewStringSlice(states.LetterOpen, states.LetterRetrying),
			Usage: "letters in `STATE`: open, retrying, replayed, discarded or all; with --side consumer open and requested (the default; " +
				"with --cause parked too), parked, redriven, discarded or all",
		},
		&cli.IntFlag{Name: "limit", Value: 100, Usage: "at most `N` letters"},
		outputFlag(),
	}, letterFlags()...)
	return &cli.Command{
		Name: "list", Usage: "list letters, oldest first",
		Flags:  append(append(flags, ofSide(migrations.Outbox, &cli.StringFlag{Name: "slot", Usage: "only those of the relay with slot `NAME`"})...), dsnFlags()...),
		Action: bySide(deadList, lettersList),
	}
}

func deadShowCommand() *cli.Command {
	return &cli.Command{
		Name: "show", Usage: "show one letter whole: content, reason, what was decided", ArgsUsage: "KEY|PLACE",
		Flags: append(append([]cli.Flag{
			sideFlag(migrations.Outbox), outputFlag(),
			&cli.BoolFlag{Name: "payload", Usage: "print the whole payload (in JSON as base64), not only how it begins"},
		}, ofSide(migrations.Consumer, groupFlag())...), dsnFlags()...),
		Action: bySide(deadShow, lettersShow),
	}
}

func deadRetryCommand() *cli.Command {
	return &cli.Command{
		Name: "retry", Usage: "publish letters, together with what waits behind them", ArgsUsage: "[KEY…]",
		Description: "KEYs and filters pick aggregates: all waiting letters of each go out, in their order, and then the\n" +
			"aggregate's events are published as before. What is still wrong becomes a letter again. A letter that holds\n" +
			"no aggregate (policy park, a replay's) goes out alone; no letter goes out before an older one that does.",
		Flags: writeFlags(migrations.Outbox, append([]cli.Flag{
			&cli.BoolFlag{Name: "only", Hidden: true}, classFlag(), waitFlag(10 * time.Second), allFlag(),
		}, selectionFlags("parked")...)...),
		Action: bySide(deadRetry, nil),
	}
}

func deadRedriveCommand() *cli.Command {
	return &cli.Command{
		Name: "redrive", Usage: "make a consumer group handle letters again, once", ArgsUsage: "[PLACE|KEY…]",
		Description: "A member of the group takes the letter up within seconds, and settles it in the transaction of its effect.\n" +
			"What fails again is open again, with the new error. What is parked behind a letter follows it, in order. A PLACE\n" +
			"or KEY of which several groups have letters needs --group.",
		Flags: writeFlags(migrations.Consumer, append(groupLetterFlags(),
			append([]cli.Flag{waitFlag(30 * time.Second), allFlag()},
				without("aggregate-type", selectionFlags("kept"))...)...)...),
		Action: bySide(nil, lettersRedrive),
	}
}

func deadEditCommand() *cli.Command {
	return &cli.Command{
		Name: "edit", Usage: "change a letter's payload or headers, before a retry", ArgsUsage: "KEY",
		Description: "The key stays: consumers take the changed event for the original one.",
		Flags:       writeFlags(migrations.Outbox, append(editFlags(), waitFlag(10*time.Second))...),
		Action:      bySide(deadEdit, nil),
	}
}

func deadDiscardCommand() *cli.Command {
	return &cli.Command{
		Name: "discard", Usage: "give letters up for good", ArgsUsage: "[KEY|PLACE…]",
		Description: "A discarded event is not published; `outboxctl replay --dead` can bring it back. A halted relay reads\n" +
			"no orders: tell it with `outboxctl skip`. A consumer group's letter is kept for 30 days more; a PLACE or KEY of\n" +
			"which several groups have letters needs --group.",
		Flags: writeFlags(migrations.Outbox,
			append(append(letterFlags(), ofSide(migrations.Outbox, waitFlag(10*time.Second))...), allFlag())...),
		Action: bySide(deadDiscard, lettersDiscard),
	}
}

// writeFlags are the flags of a command that decides about letters.
func writeFlags(side migrations.Side, more ...cli.Flag) []cli.Flag {
	return append(append([]cli.Flag{sideFlag(side), reasonFlag(), yesFlag(), outputFlag()}, more...), dsnFlags()...)
}

// letterFlags are the filters of commands about letters of both sides.
func letterFlags() []cli.Flag {
	flags := append(without("aggregate-type", selectionFlags("parked or kept")), ofSide(migrations.Consumer, groupLetterFlags()...)...)
	aggregateType := &cli.StringFlag{Name: "aggregate-type", Usage: "only those of aggregates of `TYPE`"}
	return append(flags, ofSide(migrations.Outbox, classFlag(), aggregateType)...)
}

// groupLetterFlags are the filters that only a consumer group's letters have.
func groupLetterFlags() []cli.Flag {
	return []cli.Flag{
		groupFlag(),
		&cli.StringFlag{Name: "cause", Usage: "only those kept for `CAUSE`: " + strings.Join(states.Causes, ", ")},
		&cli.StringFlag{Name: "topic", Usage: "only those of `TOPIC`"},
		ageFlag("older", "only those kept for longer than `AGE`, e.g. 7d, 1d12h or 1h"),
	}
}

func groupFlag() cli.Flag {
	return &cli.StringFlag{Name: "group", Usage: "only those of the consumer group `NAME`"}
}

func classFlag() cli.Flag {
	return &cli.StringFlag{Name: "class", Usage: "only those refused for an error of `CLASS`"}
}

func allFlag() cli.Flag {
	return &cli.BoolFlag{Name: "all", Usage: "all letters that wait"}
}

func waitFlag(limit time.Duration) cli.Flag {
	return &cli.DurationFlag{Name: "wait", Value: limit, Usage: "wait until it is done, at most for `TIME`; 0 does not wait"}
}
