package main

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/migrations"
)

// groupLettersReport is the JSON answer of dead list on the consumer's side.
type groupLettersReport struct {
	Letters []groupLetter `json:"letters"`
	More    bool          `json:"more"` // than the limit
}

// waitingStates are those of letters that wait for somebody's decision, or for
// what was decided.
var waitingStates = []string{states.LetterOpen, states.LetterRequested}

// unsettledStates are those of letters that can be given up.
var unsettledStates = append(slices.Clone(waitingStates), states.LetterParked)

func lettersList(c *cli.Context) error {
	s, states, err := readLettersList(c)
	if err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	rows, err := consumerdb.New(db).ListGroupLetters(c.Context, s.query(states, c.Int("limit")))
	if err != nil {
		return fmt.Errorf("list dead letters: %w", operator.Explain(err, migrations.Consumer))
	}
	report := groupLettersReport{Letters: []groupLetter{}}
	for _, v := range rows {
		report.Letters = append(report.Letters, newGroupLetter(v))
	}
	if limit := c.Int("limit"); len(report.Letters) > limit {
		report.Letters, report.More = report.Letters[:limit], true
	}
	return answer(c, report, printGroupLetters)
}

// readLettersList checks what needs no server.
func readLettersList(c *cli.Context) (s letterSelection, states []string, err error) {
	if err := noArgument(c, "to look at one letter: outboxctl dead show --side consumer PLACE"); err != nil {
		return s, nil, err
	}
	if err := checkLimit(c); err != nil {
		return s, nil, err
	}
	if states, err = readGroupStates(c); err != nil {
		return s, nil, err
	}
	s, err = readLetterSelection(c)
	return s, states, err
}

func readGroupStates(c *cli.Context) ([]string, error) {
	switch {
	case !c.IsSet("state") && c.IsSet("cause"):
		return unsettledStates, nil // most of the cause parked are in the state of that name
	case !c.IsSet("state"):
		return waitingStates, nil
	}
	all := append(slices.Clone(unsettledStates), states.LetterRedriven, states.LetterDiscarded)
	given := c.StringSlice("state")
	for _, state := range given {
		if state == "all" {
			return all, nil
		}
		if !slices.Contains(all, state) {
			return nil, usage("--state %q: want open, requested, redriven, discarded, parked or all", state)
		}
	}
	return given, nil
}

func printGroupLetters(p *page, r groupLettersReport) {
	if len(r.Letters) == 0 {
		p.line("none")
	}
	var rows [][]string
	for _, v := range r.Letters {
		rows = append(rows, []string{
			v.Group, v.Place, orDash(v.Key), v.State, terminal.Preview([]byte(orDash(v.EventType)), terminal.PreviewBytes), terminal.Stamp(&v.KeptAt),
			strconv.Itoa(int(v.Attempts)), v.why(terminal.PreviewBytes),
		})
	}
	p.table([]string{"group", "place", "key", "state", "type", "kept", "attempts", "why"}, rows)
	if r.More {
		p.line("\nthere are more; raise --limit")
	}
}
