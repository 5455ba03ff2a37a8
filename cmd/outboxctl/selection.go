package main

import (
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/secret"
	"github.com/onceward/onceward/outbox"
)

const keyExample = "a key looks like payments:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a: the producing service, a colon, a UUID of version 7 or 8; " +
	"commands about events and letters take the UUID alone, too"

// selection says which events or letters a command is about: those of the KEYs,
// or those that all the filters given match.
type selection struct {
	keys          []eventName
	namespace     string
	aggregateType string
	aggregate     string
	eventType     string
	from, to      *time.Time // from is in, to is out
}

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
func readSelection(c *cli.Context) (selection, error) { return readSelectionOf(c, c.Args().Slice()) }

// readSelectionOf is readSelection with KEYs that are not all arguments.
func readSelectionOf(c *cli.Context, keys []string) (s selection, err error) {
	if s.keys, err = readKeys(keys); err != nil {
		return s, err
	}
	s.namespace, s.aggregateType = c.String("namespace"), c.String("aggregate-type")
	s.aggregate, s.eventType = c.String("aggregate"), c.String("type")
	for name, into := range map[string]**time.Time{"from": &s.from, "to": &s.to} {
		if !c.IsSet(name) {
			continue
		}
		at, err := readTime(name, c.String(name))
		if err != nil {
			return s, err
		}
		*into = &at
	}
	if s.from != nil && s.to != nil && !s.from.Before(*s.to) {
		return s, usage("--from %s is not before --to %s", c.String("from"), c.String("to"))
	}
	if len(s.keys) > 0 && s.filtered() {
		return s, usage("%s: give KEYs or filters, not both", c.Command.HelpName)
	}
	return s, nil
}

func readKeys(texts []string) (names []eventName, err error) {
	for _, text := range texts {
		name, err := readName(text)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// readKey does not judge the key's time: an event of a clock that runs ahead is
// there all the same.
func readKey(text string) (outbox.Key, error) {
	key, err := outbox.ParseKeyAt(text, time.Now(), outbox.NoSkewLimit)
	switch {
	case !errors.Is(err, outbox.ErrKey):
		return key, err
	case secret.Suspect(text):
		return key, usage("KEY is %s; %s", secret.Argument(text), keyExample)
	}
	return key, usage("%v; %s", err, keyExample)
}

func readTime(name, text string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly} {
		if at, err := time.Parse(layout, text); err == nil {
			return at.UTC(), nil
		}
	}
	return time.Time{}, usage("--%s %q: want a time such as 2026-11-21T12:00:00Z, or a day such as 2026-11-21 (it begins at 00:00 UTC)", name, text)
}

// filtered tells whether a filter was given.
func (s selection) filtered() bool {
	return s.namespace+s.aggregateType+s.aggregate+s.eventType != "" || s.from != nil || s.to != nil
}

// ids are the UUIDs of the KEYs; never nil, because a nil array is no empty one
// in SQL.
func (s selection) ids() []uuid.UUID {
	ids := make([]uuid.UUID, 0, len(s.keys))
	for _, k := range s.keys {
		ids = append(ids, k.id)
	}
	return ids
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
