package main

import (
	"slices"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/letters"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/terminal"
)

func deadList(c *cli.Context) error {
	filter, err := readLetterList(c)
	if err != nil {
		return err
	}
	return ask(c, func(db *operator.Database) (*letters.List, error) {
		return letters.Read(c.Context, db, filter, c.Int("limit"))
	}, printDeadLetters)
}

// readLetterList checks what needs no server.
func readLetterList(c *cli.Context) (f letters.Filter, err error) {
	if err := checkOutput(c); err != nil {
		return f, err
	}
	if err := noArgument(c, "to look at one letter: outboxctl dead show KEY"); err != nil {
		return f, err
	}
	if err := checkLimit(c); err != nil {
		return f, err
	}
	f.Slot, f.Class = c.String("slot"), c.String("class")
	if f.Selection, err = readSelection(c); err != nil {
		return f, err
	}
	f.States, err = readStates(c.StringSlice("state"))
	return f, err
}

func readStates(given []string) ([]string, error) {
	all := []string{states.LetterOpen, states.LetterRetrying, states.LetterReplayed, states.LetterDiscarded}
	for _, state := range given {
		if state == "all" {
			return all, nil
		}
		if !slices.Contains(all, state) {
			return nil, usage("--state %q: want open, retrying, replayed, discarded or all", state)
		}
	}
	return given, nil
}

func printDeadLetters(p *page, r *letters.List) {
	if len(r.Letters) == 0 {
		p.line("none")
	}
	var rows [][]string
	for _, v := range r.Letters {
		state := v.State
		if v.ReplayOf != "" {
			state += ", replay"
		}
		if v.EditedAt != nil {
			state += ", edited"
		}
		if v.Waits {
			state += ", waits for its route"
		}
		rows = append(rows, []string{
			v.Key, state, short(v.EventType), short(v.AggregateType + " " + v.AggregateID),
			terminal.Stamp(&v.FirstAt), strconv.Itoa(int(v.Attempts)), v.Class + ": " + whole(v.Error),
		})
	}
	p.table([]string{"key", "state…", "type?", "aggregate?", "parked??", "attempts??", "why…"}, rows)
	if r.More {
		p.line("\nthere are more; raise --limit")
	}
}
