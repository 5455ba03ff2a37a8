package main

import (
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

func windowsCommand() *cli.Command {
	write := func(more ...cli.Flag) []cli.Flag {
		return append(append(more, reasonFlag(), yesFlag(), outputFlag()), dsnFlags()...)
	}
	class := func(usage string) cli.Flag { return &cli.StringFlag{Name: "class", Usage: usage} }
	return &cli.Command{
		Name:  "windows",
		Usage: "look at the deduplication windows of consumer groups; size them, adopt new groups, retire old ones",
		Description: "A class is a pattern of event types of one group: an event type, or the beginning of one followed by *. Its\n" +
			"floor is the event time below which claims may be gone. It follows what the group has finished, never the\n" +
			"clock alone, and is never lowered.",
		Subcommands: []*cli.Command{
			{
				Name: "list", Usage: "list classes with their floors, and what holds them back; exit code 3 when one stands still, or a partition that is needed is missing, detached or wrong",
				Flags:  append([]cli.Flag{groupFlag(), outputFlag()}, dsnFlags()...),
				Action: windowsList,
			},
			{
				Name: "set", Usage: "change the window or the policies of a class", ArgsUsage: "GROUP CLASS",
				Description: "What is registered counts, not the program's configuration, which only lengthens a window by event time. A\n" +
					"new window changes the buckets in which the class claims by arrival, too: both are claimed for two of the\n" +
					"old ones and a day, so that copies on both sides of the change meet.",
				Flags: write(
					&cli.StringFlag{Name: "window", Usage: "the new `WINDOW`, e.g. 7d, 36h or 15m"},
					&cli.StringFlag{Name: "late", Usage: "`POLICY` for late events: process or dead-letter"},
					&cli.StringFlag{Name: "replay", Usage: "`POLICY` for replays from below the floor: dead-letter or process"},
				),
				Action: windowsSet,
			},
			{
				Name: "adopt", Usage: "let a new group claim the events of an old topic as its own", ArgsUsage: "GROUP",
				Description: "It makes the daily partitions back to --from and puts the group's floor there; groups that are there judge by\n" +
					"their own floors, as before. Without it a new group applies the backlog as late events. Give the classes of\n" +
					"the program's configuration. It needs the role onceward_consumer_maintainer.",
				Flags: write(
					&cli.StringFlag{Name: "from", Usage: "event `TIME` of the oldest event to claim: 2026-11-21T12:00:00Z, or a day, in UTC"},
					&cli.StringSliceFlag{Name: "class", Usage: "`PATTERN` of a class; without it those that are registered, or \"*\""},
					&cli.StringFlag{Name: "window", Usage: "`WINDOW` of classes that are not registered yet, e.g. 7d", Value: "7d"},
				),
				Action: windowsAdopt,
			},
			raiseCommand(write()),
			{
				Name: "retire", Usage: "let a group, a class or a topic that is not used any more hold nothing back", ArgsUsage: "GROUP",
				Description: "A retired class keeps no partition. A start of the program registers it again, with a floor above what was\n" +
					"dropped meanwhile. With --topic the group's stream time goes on without a topic that it does not read any\n" +
					"more; how far it got there is kept.",
				Flags: write(
					class("only the class `PATTERN`"),
					&cli.StringFlag{Name: "topic", Usage: "not the group: its marks of `TOPIC`; \"\" is what it receives from no topic"},
				),
				Action: windowsRetire,
			},
			{
				Name: "advise", Usage: "compare the windows with the age of the duplicates that were seen; exit code 3 when one is too small",
				Flags:  append([]cli.Flag{groupFlag(), outputFlag()}, dsnFlags()...),
				Action: windowsAdvise,
			},
		},
	}
}

// Bounds of a window, as of consumer.Class.
const (
	minWindow = time.Minute
	maxWindow = 3660 * 24 * time.Hour
)

const day = 24 * time.Hour

func readWindow(text string) (time.Duration, error) {
	d, err := readLength(text)
	if err != nil || d < minWindow || d > maxWindow || d%time.Millisecond != 0 {
		return 0, usage("--window %q: want a length such as 7d, 36h or 15m, from 1m to 3660d in whole milliseconds", text)
	}
	return d, nil
}

// ageFlag is how old something is, for readAge.
func ageFlag(name, usage string) cli.Flag { return &cli.StringFlag{Name: name, Usage: usage} }

// readAge reads a flag that says how old something is; 0: it is not given.
func readAge(c *cli.Context, name string) (time.Duration, error) {
	if !c.IsSet(name) {
		return 0, nil
	}
	d, err := readLength(c.String(name))
	if err != nil || d <= 0 {
		return 0, usage("--%s %q: want an age such as 7d, 1d12h or 15m", name, c.String(name))
	}
	return d, nil
}

// readLength reads a duration that may begin with days.
func readLength(text string) (d time.Duration, err error) {
	rest, whole := text, uint64(0)
	if days, clock, ok := strings.Cut(text, "d"); ok {
		rest = clock
		whole, err = strconv.ParseUint(days, 10, 15)
	}
	if err == nil && (rest != "" || rest == text) {
		d, err = time.ParseDuration(rest)
	}
	return d + time.Duration(whole)*day, err
}
