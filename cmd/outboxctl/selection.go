package main

import (
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
)

// selectionFlags are the filters; since names the time that --from and --to are
// compared with.
func selectionFlags(since string) []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "namespace", Usage: "only those of the producing service `NAME`"},
		&cli.StringFlag{Name: "aggregate-type", Usage: "only those of aggregates of `TYPE`"},
		&cli.StringFlag{Name: "aggregate", Usage: "only those of the aggregate with `ID`"},
		&cli.StringFlag{Name: "type", Usage: "only events of `TYPE`"},
		&cli.StringFlag{Name: "from", Usage: "only those " + since + " at `TIME` or later: 2026-11-21T12:00:00Z, or a day, in UTC"},
		&cli.StringFlag{Name: "to", Usage: "only those " + since + " before `TIME`"},
	}
}

// readSelection checks KEYs and filters; it needs no server. KEYs are returned
// once each.
func readSelection(c *cli.Context) (operator.Selection, error) {
	return readSelectionOf(c, c.Args().Slice())
}

// readSelectionOf is readSelection with KEYs that are not all arguments.
func readSelectionOf(c *cli.Context, keys []string) (s operator.Selection, err error) {
	if s.Keys, err = readKeys(keys); err != nil {
		return s, err
	}
	s.Namespace, s.AggregateType = c.String("namespace"), c.String("aggregate-type")
	s.Aggregate, s.EventType = c.String("aggregate"), c.String("type")
	for name, into := range map[string]**time.Time{"from": &s.From, "to": &s.To} {
		if !c.IsSet(name) {
			continue
		}
		at, err := readTime(name, c.String(name))
		if err != nil {
			return s, err
		}
		*into = &at
	}
	if s.From != nil && s.To != nil && !s.From.Before(*s.To) {
		return s, usage("--from %s is not before --to %s", c.String("from"), c.String("to"))
	}
	if len(s.Keys) > 0 && s.Filtered() {
		return s, usage("%s: give KEYs or filters, not both", c.Command.HelpName)
	}
	return s, nil
}

// readOneName is for commands about one event.
func readOneName(c *cli.Context) (operator.Name, error) {
	if err := checkOutput(c); err != nil {
		return operator.Name{}, err
	}
	if c.NArg() != 1 {
		return operator.Name{}, usage("%s takes one KEY, got %d; %s", c.Command.HelpName, c.NArg(), operator.KeyExample)
	}
	return operator.ParseName(c.Args().First())
}

func readKeys(texts []string) (names []operator.Name, err error) {
	for _, text := range texts {
		name, err := operator.ParseName(text)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

func readTime(name, text string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly} {
		if at, err := time.Parse(layout, text); err == nil {
			return at.UTC(), nil
		}
	}
	return time.Time{}, usage("--%s %q: want a time such as 2026-11-21T12:00:00Z, or a day such as 2026-11-21 (it begins at 00:00 UTC)", name, text)
}

// reasonFlag is of every command that writes what is kept.
func reasonFlag() cli.Flag {
	return &cli.StringFlag{Name: "reason", Usage: "`WHY` it is done; kept, together with who did it"}
}

const maxReason = 1000

// readReason demands a reason: one who reads the rows later has nothing else.
func readReason(c *cli.Context) (string, error) {
	reason := c.String("reason")
	switch {
	case reason == "":
		return "", usage("%s: --reason is missing; it is kept together with who did it", c.Command.HelpName)
	case len(reason) > maxReason:
		return "", usage("--reason: longer than %d bytes", maxReason)
	}
	return reason, nil
}
