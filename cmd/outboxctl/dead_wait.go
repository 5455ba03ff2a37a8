package main

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
	"github.com/onceward/onceward/internal/terminal"
)

// wordReport is the JSON answer of dead retry, edit and discard.
type wordReport struct {
	Action   string          `json:"action"`
	Reason   string          `json:"reason,omitempty"`
	Waited   bool            `json:"waited"`
	Letters  []letterOutcome `json:"letters"`
	Relays   []string        `json:"relays"`                  // how far those are that have not acted
	Left     []remainsReport `json:"still_waiting,omitempty"` // after a discard
	Problems []string        `json:"problems"`                // why nothing was ordered
}

type letterOutcome struct {
	Key     string `json:"key"`
	Slot    string `json:"slot"`
	Outcome string `json:"outcome"`
	Detail  string `json:"detail"`
}

// now is how a letter stands, and what its relay says of the word.
type now struct {
	letter outboxdb.LettersNowRow
	found  bool
	result *outboxdb.ResultsOfControlsRow // nil: the relay has not read the word
}

// judge says what became of a word for one letter. It is pure. The relay writes
// the word's id into the letter when it acts.
func (w *word) judge(before letterRef, is now) letterOutcome {
	o := letterOutcome{Key: operator.KeyText(before.namespace, before.id), Slot: before.slot}
	set := func(outcome, format string, args ...any) letterOutcome {
		o.Outcome, o.Detail = outcome, fmt.Sprintf(format, args...)
		return o
	}
	if !is.found {
		return set(states.OutcomeFailed, "the letter is gone")
	}
	acted := is.letter.ControlID != nil && *is.letter.ControlID == w.control.ControlID
	wanted := map[string]string{states.ActionRetry: states.LetterReplayed, states.ActionDiscard: states.LetterDiscarded}[w.control.Action]
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

// pollEvery is the pause between two looks at the letters.
const pollEvery = 200 * time.Millisecond

// poll looks, again and again, until nothing is pending or the time is over.
func poll(ctx context.Context, limit time.Duration, look func() (pending bool, err error)) error {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for over := limit == 0; ; {
		pending, err := look()
		if err != nil || !pending || over {
			return err
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			over = true
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// await looks at the letters until the relays have acted on all of them or the
// time is over. The orders stand in any case.
func await(ctx context.Context, db *operator.Database, words []*word, limit time.Duration) (*wordReport, error) {
	q := outboxdb.New(db)
	var report *wordReport
	var pending map[string]bool
	err := poll(ctx, limit, func() (_ bool, err error) {
		report, pending, err = look(ctx, q, words)
		return len(pending) > 0, err
	})
	if err != nil {
		return nil, err
	}
	report.Relays, err = lagging(ctx, q, pending)
	return report, err
}

// resultOf names what one relay did about one word.
type resultOf struct {
	slot    string
	control uuid.UUID
}

// look judges every letter of the words, and returns the slots that have not
// acted. It reads the results before the letters: a relay writes both in one
// transaction.
func look(ctx context.Context, q *outboxdb.Queries, words []*word) (report *wordReport, pending map[string]bool, err error) {
	var ids, controls []uuid.UUID
	for _, w := range words {
		controls = append(controls, w.control.ControlID)
		for _, l := range w.letters {
			ids = append(ids, l.id)
		}
	}
	obeyed, err := q.ResultsOfControls(ctx, controls)
	if err != nil {
		return nil, nil, err
	}
	results := make(map[resultOf]*outboxdb.ResultsOfControlsRow, len(obeyed))
	for i, v := range obeyed {
		results[resultOf{v.Slot, v.ControlID}] = &obeyed[i]
	}
	rows, err := q.LettersNow(ctx, ids)
	if err != nil {
		return nil, nil, err
	}
	letters := make(map[letterRef]outboxdb.LettersNowRow, len(rows))
	for _, v := range rows {
		letters[letterRef{slot: v.Slot, id: v.LetterID}] = v
	}
	report, pending = &wordReport{Letters: []letterOutcome{}, Problems: []string{}}, make(map[string]bool)
	for _, w := range words {
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
func lagging(ctx context.Context, q *outboxdb.Queries, slots map[string]bool) ([]string, error) {
	out := []string{}
	if len(slots) == 0 {
		return out, nil
	}
	known, err := relays.Read(ctx, q)
	if err != nil {
		return nil, err
	}
	for _, r := range known {
		if slots[r.Slot] {
			out = append(out, r.ReadsLater())
		}
	}
	return out, nil
}

// verdict is wrong when a letter is not as was wanted, also because the relay
// did not act in the time that it was given.
func (r *wordReport) verdict() error {
	return verdictOn(r.outcomes(), r.Waited)
}

func (r *wordReport) outcomes() []string {
	out := make([]string, len(r.Letters))
	for i, l := range r.Letters {
		out[i] = l.Outcome
	}
	return out
}

// verdictOn is wrong when something failed, or waits longer than it was waited for.
func verdictOn(outcomes []string, waited bool) error {
	if slices.Contains(outcomes, states.OutcomeFailed) || waited && slices.Contains(outcomes, states.OutcomePending) {
		return errWrong
	}
	return nil
}

// maxOutcomes are shown to a person one by one.
const maxOutcomes = 50

// printOutcomes counts what became of the letters, and shows the first of them.
func printOutcomes(p *page, action string, outcomes, heading []string, row func(i int) []string) {
	counts := make(map[string]int)
	var rows [][]string
	for i, outcome := range outcomes {
		counts[outcome]++
		if i < maxOutcomes {
			rows = append(rows, row(i))
		}
	}
	p.line("%s of %d letters: %d done, %d pending, %d failed", action, len(outcomes), counts[states.OutcomeDone], counts[states.OutcomePending], counts[states.OutcomeFailed])
	p.table(heading, rows)
	if len(outcomes) > maxOutcomes {
		p.line("\nthe first %d are shown; --output json has all", maxOutcomes)
	}
}

func printDecided(p *page, r *wordReport) {
	if len(r.Problems) > 0 {
		for _, problem := range r.Problems {
			p.line("! %s", problem)
		}
		p.line("nothing was ordered")
		return
	}
	if len(r.Letters) == 0 {
		p.line("no letter waits that is meant; nothing was ordered")
		return
	}
	printOutcomes(p, r.Action, r.outcomes(), []string{"key", "slot", "outcome", "detail"}, func(i int) []string {
		l := r.Letters[i]
		return []string{l.Key, l.Slot, l.Outcome, terminal.Preview([]byte(l.Detail), 2*terminal.PreviewBytes)}
	})
	for i, l := range r.Left {
		if i == maxOutcomes {
			break
		}
		p.line("\n%d letters of the aggregate %s still wait: `outboxctl dead retry %s --reason \"…\"` publishes them",
			l.Letters, terminal.Preview([]byte(l.AggregateType+" "+l.AggregateID), terminal.PreviewBytes), l.Key)
	}
	for _, relay := range r.Relays {
		p.line("\n%s", relay)
	}
}
