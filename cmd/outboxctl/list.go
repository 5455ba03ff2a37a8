package main

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/events"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/terminal"
)

func listCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "list events by state: pending (the default), waiting, published, dead, gap, given-up or before",
		Description: "Every committed event is in exactly one state for each relay. What is pending is told by the relays' published\n" +
			"snapshots, exactly and at most one tick late: some relay still owes it. Waiting: its route cannot be used for now.\n" +
			"Published: by every relay. Gap: a relay cannot prove that it published it (outboxctl gap list,\n" +
			"or partitions status for a partition that held rows when it was attached). Given-up: of a\n" +
			"gap that was accepted. Dead: a letter that waits for a decision (outboxctl dead list has the\n" +
			"discarded ones). Before: older than a relay that began with outbox.start: now, which leaves it out.\n" +
			"--relay asks one relay alone.",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "state", Value: states.Pending, Usage: "`STATE` of the events: pending, gap, given-up, before (oldest first), " +
				"waiting (in commit order), published (newest first) or dead"},
			&cli.StringFlag{Name: "relay", Usage: "as the relay called `NAME` has it; without it some relay, and for published every relay"},
			&cli.StringFlag{Name: "namespace", Usage: "only those of the producing service `NAME`"},
			&cli.StringFlag{Name: "aggregate-type", Usage: "only those of aggregates of `TYPE`"},
			&cli.StringFlag{Name: "aggregate", Usage: "only those of the aggregate with `ID`"},
			&cli.StringFlag{Name: "type", Usage: "only events of `TYPE`"},
			ageFlag("stuck", "those older than `AGE`, e.g. 1m or 7d, that are pending or waiting; exit code 3 when there are any"),
			&cli.IntFlag{Name: "limit", Value: 100, Usage: "at most `N` events"},
			outputFlag(),
		}, dsnFlags()...),
		Action: listEvents,
	}
}

func listEvents(c *cli.Context) error {
	filter, err := listFilter(c)
	if err != nil {
		return err
	}
	return ask(c, func(db *operator.Database) (*events.List, error) {
		if c.String("relay") != "" {
			state, err := theRelay(c, db)
			if err != nil {
				return nil, err
			}
			filter.Slot = state.Slot
		}
		report, err := events.Read(c.Context, db, filter)
		return report, prefixed("list", err)
	}, printList)
}

// listFilter checks what needs no server.
func listFilter(c *cli.Context) (f events.Filter, err error) {
	if err := checkOutput(c); err != nil {
		return f, err
	}
	if err := noArgument(c, "to look at one event: outboxctl show KEY"); err != nil {
		return f, err
	}
	state := c.String("state")
	if all := []string{states.Pending, states.Waiting, states.Published, states.Dead, states.Gap, states.GivenUp,
		states.Before}; !slices.Contains(all, state) {
		return f, usage("--state %q: want one of %s", state, strings.Join(all, ", "))
	}
	if err := checkLimit(c); err != nil {
		return f, err
	}
	if c.IsSet("stuck") && state != states.Pending {
		return f, usage("--stuck is about what is pending or waiting, and goes without --state")
	}
	f = events.Filter{
		State: state, Namespace: c.String("namespace"), AggregateType: c.String("aggregate-type"), AggregateID: c.String("aggregate"), EventType: c.String("type"), Limit: c.Int("limit"),
	}
	f.Older, err = readAge(c, "stuck")
	return f, err
}

func printList(p *page, r *events.List) {
	var rows [][]string
	for _, e := range r.Events {
		row := []string{
			e.Key, e.State, short(e.EventType), short(e.AggregateType + " " + e.AggregateID), terminal.Stamp(&e.CreatedAt),
			(time.Duration(e.AgeSeconds) * time.Second).String(), strconv.FormatInt(e.Seq, 10),
		}
		if e.Letter != nil {
			row = append(row, e.Letter.Class+": "+whole(e.Letter.Error))
		}
		rows = append(rows, row)
	}
	heading := []string{"key", "state!", "type?", "aggregate?", "written??", "age?", "seq??"}
	if r.State == states.Dead {
		heading = append(heading, "why…")
	}
	if len(rows) == 0 {
		p.line("no event was found %s; `outboxctl status` counts those of the others", r.Sought())
	}
	p.table(heading, rows)
	if r.More {
		p.line("\nthere are more; raise --limit")
	}
	if r.Replays > 0 {
		p.line("\n%s too: `outboxctl status` says for what", label.Count(r.Replays, "replay waits", "replays wait"))
	}
	for _, leaf := range r.Filled {
		p.line("\n! partition %s held rows when it was attached, and none of its events counts as published: `outboxctl partitions status` says what to do", leaf)
	}
	printProblems(p, r.Problems)
	for _, v := range r.Relays {
		if !v.Known {
			p.line("\nrelay %s has no published snapshot yet: what it has published is not known here", v.Relay)
		}
	}
	for _, relay := range r.NotBegun {
		p.line("\nrelay %s has not begun: `outboxctl status` says what it waits for", relay)
	}
	if len(r.Relays)+len(r.NotBegun) == 0 {
		p.line("\n%s", label.NoRelay)
	}
}
