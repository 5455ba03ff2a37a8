package main

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/migrations"
)

// lettersReport is the JSON answer of dead list.
type lettersReport struct {
	Letters []deadReport `json:"letters"`
	More    bool         `json:"more"` // than the limit
}

// deadReport is a letter without its content.
type deadReport struct {
	Key           string     `json:"key"` // of the letter: a replay's has the replay's id in it
	ReplayOf      string     `json:"replay_of,omitempty"`
	Slot          string     `json:"slot"`
	State         string     `json:"state"`
	AggregateType string     `json:"aggregate_type"`
	AggregateID   string     `json:"aggregate_id"`
	EventType     string     `json:"event_type"`
	CreatedAt     time.Time  `json:"created_at"`
	Seq           int64      `json:"seq"`
	Position      string     `json:"position"`
	Class         string     `json:"error_class"`
	Error         string     `json:"error"`
	Holds         bool       `json:"holds_aggregate"` // later events of the aggregate wait behind it
	Attempts      int32      `json:"attempts"`
	FirstAt       time.Time  `json:"first_at"`
	LastAt        time.Time  `json:"last_at"`
	ControlID     *uuid.UUID `json:"control_id,omitempty"`
	DecidedBy     *string    `json:"decided_by,omitempty"`
	DecidedWhy    *string    `json:"decided_why,omitempty"`
	EditedAt      *time.Time `json:"edited_at,omitempty"`
	Waits         bool       `json:"waits_for_route,omitempty"` // a retry of it was ordered, and waits

	id        uuid.UUID
	namespace string
}

func deadList(c *cli.Context) error {
	filter, err := readLetterList(c)
	if err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	rows, err := outboxdb.New(db).ListLetters(c.Context, filter)
	if err != nil {
		return fmt.Errorf("list dead letters: %w", operator.Explain(err, migrations.Outbox))
	}
	report := lettersReport{Letters: []deadReport{}}
	for _, v := range rows {
		report.Letters = append(report.Letters, newDeadReport(v))
	}
	if limit := c.Int("limit"); len(report.Letters) > limit {
		report.Letters, report.More = report.Letters[:limit], true
	}
	return answer(c, report, printDeadLetters)
}

// readLetterList checks what needs no server. It asks for one letter more than
// the limit, which tells whether there are more.
func readLetterList(c *cli.Context) (f outboxdb.ListLettersParams, err error) {
	if err := checkOutput(c); err != nil {
		return f, err
	}
	if err := noArgument(c, "to look at one letter: outboxctl dead show KEY"); err != nil {
		return f, err
	}
	if err := checkLimit(c); err != nil {
		return f, err
	}
	s, err := readSelection(c)
	if err != nil {
		return f, err
	}
	f = waitingLetters(c, s)
	f.Slot, f.RowLimit = c.String("slot"), int32(c.Int("limit"))+1
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

// waitingLetters turns the selection into one of letters that wait.
func waitingLetters(c *cli.Context, s operator.Selection) outboxdb.ListLettersParams {
	return outboxdb.ListLettersParams{
		States: []string{states.LetterOpen, states.LetterRetrying}, Ids: s.IDs(), Namespace: s.Namespace, AggregateType: s.AggregateType,
		AggregateID: s.Aggregate, EventType: s.EventType, ErrorClass: c.String("class"), FromTime: s.From, ToTime: s.To, RowLimit: operator.MaxListed,
	}
}

func newDeadReport(v outboxdb.ListLettersRow) deadReport {
	r := deadReport{
		Key: operator.KeyText(v.Namespace, v.LetterID), Slot: v.Slot, State: v.State, AggregateType: v.AggregateType, AggregateID: v.AggregateID,
		EventType: v.EventType, CreatedAt: v.CreatedAt.UTC(), Seq: v.Seq, Position: v.Position, Class: v.ErrorClass, Error: v.Error,
		Attempts: v.Attempts, Holds: v.Holds, FirstAt: v.FirstAt.UTC(), LastAt: v.LastAt.UTC(),
		ControlID: v.ControlID, DecidedBy: v.DecidedBy, DecidedWhy: v.DecidedWhy, EditedAt: v.EditedAt, Waits: v.Waits && (v.State == states.LetterOpen || v.State == states.LetterRetrying),
		id: v.LetterID, namespace: v.Namespace,
	}
	if v.ReplayOf != nil {
		r.ReplayOf = operator.KeyText(v.Namespace, *v.ReplayOf)
	}
	return r
}

func printDeadLetters(p *page, r lettersReport) {
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
			v.Key, state, terminal.Preview([]byte(v.EventType), terminal.PreviewBytes), terminal.Preview([]byte(v.AggregateType+" "+v.AggregateID), terminal.PreviewBytes),
			terminal.Stamp(&v.FirstAt), strconv.Itoa(int(v.Attempts)), v.Class + ": " + terminal.Preview([]byte(v.Error), terminal.PreviewBytes),
		})
	}
	p.table([]string{"key", "state", "type", "aggregate", "parked", "attempts", "why"}, rows)
	if r.More {
		p.line("\nthere are more; raise --limit")
	}
}
