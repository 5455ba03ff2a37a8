package main

import (
	"slices"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/letters"
	"github.com/onceward/onceward/internal/terminal"
)

func lettersList(c *cli.Context) error {
	s, meant, err := readLettersList(c)
	if err != nil {
		return err
	}
	return ask(c, func(db *operator.Database) (*letters.GroupList, error) {
		return letters.ReadGroups(c.Context, db, s, meant, c.Int("limit"))
	}, printGroupLetters)
}

// readLettersList checks what needs no server.
func readLettersList(c *cli.Context) (s letters.GroupFilter, meant []string, err error) {
	if err := noArgument(c, "to look at one letter: outboxctl dead show --side consumer PLACE"); err != nil {
		return s, nil, err
	}
	if err := checkLimit(c); err != nil {
		return s, nil, err
	}
	if meant, err = readGroupStates(c); err != nil {
		return s, nil, err
	}
	s, err = readLetterSelection(c)
	return s, meant, err
}

func readGroupStates(c *cli.Context) ([]string, error) {
	switch {
	case !c.IsSet("state") && c.IsSet("cause"):
		return letters.UnsettledStates, nil // most of the cause parked are in the state of that name
	case !c.IsSet("state"):
		return letters.WaitingStates, nil
	}
	given := c.StringSlice("state")
	for _, state := range given {
		if state == "all" {
			return letters.EveryState, nil
		}
		if !slices.Contains(letters.EveryState, state) {
			return nil, usage("--state %q: want open, requested, redriven, discarded, parked or all", state)
		}
	}
	return given, nil
}

func printGroupLetters(p *page, r *letters.GroupList) {
	if len(r.Letters) == 0 {
		p.line("none")
	}
	var rows [][]string
	for _, v := range r.Letters {
		rows = append(rows, []string{
			v.Group, v.Place, orDash(v.Key), v.State, short(orDash(v.EventType)), terminal.Stamp(&v.KeptAt),
			strconv.Itoa(int(v.Attempts)), strconv.FormatInt(v.Behind, 10), v.Brief(),
		})
	}
	p.table([]string{"group", "place", "key?", "state", "type?", "kept??", "attempts??", "behind??", "why…"}, rows)
	if r.Behind() {
		p.line("\nletters wait behind what is listed: `outboxctl dead list --side consumer --state parked` has them")
	}
	if r.More {
		p.line("\nthere are more; raise --limit")
	}
	printProblems(p, r.Problems)
}
