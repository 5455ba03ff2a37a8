package letters

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/relays"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/migrations"
)

// Became is what became of an order.
type Became struct {
	Action   string             `json:"action"`
	Reason   string             `json:"reason,omitempty"`
	Waited   bool               `json:"waited"`
	Letters  []Outcome          `json:"letters"`
	Relays   []operator.Problem `json:"relays"`                  // how far those are that have not acted
	Left     []Remains          `json:"still_waiting,omitempty"` // after a discard
	Problems []operator.Problem `json:"problems"`                // why nothing was ordered
}

// Outcome is what became of an order for one letter.
type Outcome struct {
	Key     string `json:"key"`
	Slot    string `json:"slot"`
	Outcome string `json:"outcome"`
	Detail  string `json:"detail"`
}

// now is how a letter stands, and what its relay says of the command.
type now struct {
	letter outboxdb.LettersNowRow
	found  bool
	result *outboxdb.ResultsOfControlsRow // nil: the relay has not read the command
}

// judge says what became of a command for one letter. It is pure. The relay writes
// the command's id into the letter when it acts.
func (w *command) judge(before letterRef, is now) Outcome {
	o := Outcome{Key: operator.KeyText(before.namespace, before.id), Slot: before.slot}
	set := func(outcome, format string, args ...any) Outcome {
		o.Outcome, o.Detail = outcome, fmt.Sprintf(format, args...)
		return o
	}
	if !is.found {
		return set(states.OutcomeFailed, "the letter is gone")
	}
	acted := is.letter.ControlID != nil && *is.letter.ControlID == w.control.ControlID
	wanted := map[string]string{states.ActionRetry: states.LetterReplayed,
		states.ActionDiscard: states.LetterDiscarded}[w.control.Action]
	switch state := is.letter.State; {
	case acted && w.control.Action == states.ActionEdit:
		return set(states.OutcomeDone, "changed; `outboxctl dead retry %s --reason \"…\"` publishes it", o.Key)
	case state == wanted:
		return set(states.OutcomeDone, "%s", state)
	case state == states.LetterReplayed || state == states.LetterDiscarded:
		return set(states.OutcomeFailed, "it was %s before", state)
	case state == states.LetterRetrying && !acted && w.control.Action != states.ActionRetry && is.result != nil && is.result.Note != "":
		return set(states.OutcomeFailed, "the relay did nothing: %s", is.result.Note)
	case acted && is.letter.Released && is.letter.Waits:
		return set(states.OutcomePending, "waits for its route")
	case state == states.LetterRetrying || acted && is.letter.Released:
		return set(states.OutcomePending, "being published")
	case acted && is.letter.Attempts > before.attempts:
		return set(states.OutcomeFailed, "refused again: %s", is.letter.Error)
	case acted:
		return set(states.OutcomeFailed, "waits on, behind a letter that was refused again")
	case is.result != nil && is.result.Note != "":
		return set(states.OutcomeFailed, "the relay did nothing: %s", is.result.Note)
	case is.result != nil:
		return set(states.OutcomeFailed, "the relay did not act on this letter")
	}
	return set(states.OutcomePending, "not read yet")
}

// Await looks at the letters until the relays have acted on all of them or the time is
// over. The order stands in any case.
func (o *Order) Await(ctx context.Context, db *operator.Database, limit time.Duration) (report *Became, err error) {
	q := outboxdb.New(db)
	var pending map[string]bool
	err = operator.Poll(ctx, limit, func() (_ bool, err error) {
		report, pending, err = look(ctx, q, o.commands)
		return len(pending) > 0, err
	})
	if err == nil {
		report.Relays, err = lagging(ctx, q, pending)
	}
	if err != nil {
		return nil, fmt.Errorf("%w; wait for the relay: %w", ErrOrderGiven, operator.Explain(err, migrations.Outbox))
	}
	report.Action, report.Reason, report.Waited = o.action, o.reason, limit > 0
	if report.Left, err = leftBehind(ctx, q, o.commands, report); err != nil {
		return nil, fmt.Errorf("%w; look what waits behind: %w", ErrOrderGiven, operator.Explain(err, migrations.Outbox))
	}
	return report, nil
}

// resultOf names what one relay did about one command.
type resultOf struct {
	slot    string
	control uuid.UUID
}

// look judges every letter of the commands, and returns the slots that have not
// acted. It reads the results before the letters: a relay writes both in one
// transaction.
func look(ctx context.Context, q *outboxdb.Queries, commands []*command) (report *Became, pending map[string]bool,
	err error) {
	var ids, controls []uuid.UUID
	for _, w := range commands {
		controls = append(controls, w.control.ControlID)
		for _, l := range w.letters {
			ids = append(ids, l.id)
		}
	}
	done, err := q.ResultsOfControls(ctx, controls)
	if err != nil {
		return nil, nil, err
	}
	results := make(map[resultOf]*outboxdb.ResultsOfControlsRow, len(done))
	for i, v := range done {
		results[resultOf{v.Slot, v.ControlID}] = &done[i]
	}
	rows, err := q.LettersNow(ctx, ids)
	if err != nil {
		return nil, nil, err
	}
	letters := make(map[letterRef]outboxdb.LettersNowRow, len(rows))
	for _, v := range rows {
		letters[letterRef{slot: v.Slot, id: v.LetterID}] = v
	}
	report, pending = &Became{Letters: []Outcome{}, Problems: []operator.Problem{}}, make(map[string]bool)
	for _, w := range commands {
		for _, before := range w.letters {
			is := now{result: results[resultOf{before.slot, w.control.ControlID}]}
			is.letter, is.found = letters[letterRef{slot: before.slot, id: before.id}]
			o := w.judge(before, is)
			if o.Outcome == states.OutcomePending {
				pending[before.slot] = true
			}
			report.Letters = append(report.Letters, o)
		}
	}
	return report, pending, nil
}

// lagging says of each slot why its relay has not acted yet.
func lagging(ctx context.Context, q *outboxdb.Queries, slots map[string]bool) ([]operator.Problem, error) {
	out := []operator.Problem{}
	if len(slots) == 0 {
		return out, nil
	}
	known, err := relays.Read(ctx, q)
	if err != nil {
		return nil, err
	}
	for _, r := range known {
		if slots[r.Slot] {
			out = append(out, operator.NewProblem(r.ReadsLater()).Of("", r.Relay, r.Slot))
		}
	}
	return out, nil
}

// Wrong tells that nothing was ordered for a problem, or that a letter is not as was
// wanted, also because the relay did not act in the time that it was given.
func (r *Became) Wrong() bool { return len(r.Problems) > 0 || wentWrong(r.Outcomes(), r.Waited) }

// Outcomes are those of the letters, in their order.
func (r *Became) Outcomes() []string {
	out := make([]string, len(r.Letters))
	for i, l := range r.Letters {
		out[i] = l.Outcome
	}
	return out
}

// wentWrong tells that something failed, or waits longer than it was waited for.
func wentWrong(outcomes []string, waited bool) bool {
	return slices.Contains(outcomes, states.OutcomeFailed) || waited && slices.Contains(outcomes, states.OutcomePending)
}
