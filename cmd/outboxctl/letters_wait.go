package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/terminal"
)

// redriveReport is the JSON answer of dead redrive, and of dead discard on the
// consumer's side.
type redriveReport struct {
	Action   string               `json:"action"`
	Reason   string               `json:"reason,omitempty"`
	Waited   bool                 `json:"waited"`
	Letters  []groupLetterOutcome `json:"letters"`
	Problems []string             `json:"problems"` // why nothing was decided
}

type groupLetterOutcome struct {
	Group   string `json:"group"`
	Place   string `json:"place"`
	Key     string `json:"key,omitempty"`
	Outcome string `json:"outcome"` // done, pending or failed
	Detail  string `json:"detail"`
}

// groupLetterNow is how a letter stands.
type groupLetterNow struct {
	state      string
	generation int32
	attempts   int32
	error      string
}

func (l groupLetter) outcome(outcome, format string, args ...any) groupLetterOutcome {
	return groupLetterOutcome{Group: l.Group, Place: l.Place, Key: l.Key, Outcome: outcome, Detail: fmt.Sprintf(format, args...)}
}

// judgeRedrive says what became of a redrive. It is pure. The generation counts
// the redrives that were asked for: ours is the one after that of the letter
// that was found.
func judgeRedrive(before groupLetter, found bool, is groupLetterNow) groupLetterOutcome {
	ours := before.Generation + 1
	switch {
	case !found:
		return before.outcome(states.OutcomeFailed, "the letter is gone")
	case is.state == states.LetterRedriven:
		return before.outcome(states.OutcomeDone, "redriven")
	case is.state == states.LetterDiscarded:
		return before.outcome(states.OutcomeFailed, "it was discarded meanwhile")
	case is.state == states.LetterRequested:
		return before.outcome(states.OutcomePending, "no member of the group has handled it yet")
	case is.generation < ours:
		return before.outcome(states.OutcomeFailed, "it was not asked for: somebody else decides about it")
	case is.attempts > before.Attempts:
		return before.outcome(states.OutcomeFailed, "failed again: %s", is.error)
	}
	return before.outcome(states.OutcomeFailed, "open again: %s", is.error)
}

// judgeDiscard says what became of a letter that was to be discarded. It is pure.
func judgeDiscard(before groupLetter, found bool, is groupLetterNow) groupLetterOutcome {
	switch {
	case !found:
		return before.outcome(states.OutcomeFailed, "the letter is gone")
	case is.state == states.LetterDiscarded:
		return before.outcome(states.OutcomeDone, "discarded; kept for %d days more", int(discardedKept.Hours()/24))
	case is.state == states.LetterRedriven:
		return before.outcome(states.OutcomeFailed, "it was redriven before")
	}
	return before.outcome(states.OutcomeFailed, "a redrive was asked for meanwhile; look at it, then discard it again")
}

// await looks at the letters until the groups have settled all of them or the
// time is over. The decision stands in any case.
func (d decision) await(ctx context.Context, db *operator.Database, letters []groupLetter, limit time.Duration) (report *redriveReport, err error) {
	err = poll(ctx, limit, func() (pending bool, err error) {
		report, pending, err = d.look(ctx, consumerdb.New(db), letters)
		return pending, err
	})
	return report, err
}

// look judges every letter.
func (d decision) look(ctx context.Context, q *consumerdb.Queries, letters []groupLetter) (report *redriveReport, pending bool, err error) {
	p := refs(letters)
	rows, err := q.GroupLettersNow(ctx, consumerdb.GroupLettersNowParams{
		ConsumerGroups: p.ConsumerGroups, Topics: p.Topics, KafkaPartitions: p.KafkaPartitions, KafkaOffsets: p.KafkaOffsets,
	})
	if err != nil {
		return nil, false, err
	}
	type ref struct {
		group string
		at    place
	}
	now := make(map[ref]groupLetterNow, len(rows))
	for _, v := range rows {
		at := ref{v.ConsumerGroup, place{v.Topic, v.KafkaPartition, v.KafkaOffset}}
		now[at] = groupLetterNow{state: v.State, generation: v.Generation, attempts: v.Attempts, error: v.Error}
	}
	report = &redriveReport{Letters: []groupLetterOutcome{}, Problems: []string{}}
	for _, l := range letters {
		is, found := now[ref{l.Group, l.at}]
		o := d.judge(l, found, is)
		pending = pending || o.Outcome == states.OutcomePending
		report.Letters = append(report.Letters, o)
	}
	return report, pending, nil
}

// verdict is wrong when a letter is not as was wanted, also because no member
// of its group handled it in the time that it was given.
func (r *redriveReport) verdict() error {
	return verdictOn(r.outcomes(), r.Waited)
}

func (r *redriveReport) outcomes() []string {
	out := make([]string, len(r.Letters))
	for i, l := range r.Letters {
		out[i] = l.Outcome
	}
	return out
}

func printRedriven(p *page, r *redriveReport) {
	if len(r.Problems) > 0 {
		for _, problem := range r.Problems {
			p.line("! %s", problem)
		}
		p.line("nothing was decided")
		return
	}
	if len(r.Letters) == 0 {
		p.line("no letter waits that is meant; nothing was decided")
		return
	}
	printOutcomes(p, r.Action, r.outcomes(), []string{"group", "place", "key", "outcome", "detail"}, func(i int) []string {
		l := r.Letters[i]
		return []string{l.Group, l.Place, orDash(l.Key), l.Outcome, terminal.Preview([]byte(l.Detail), 2*terminal.PreviewBytes)}
	})
	if slices.Contains(r.outcomes(), states.OutcomePending) {
		p.line("\na member of the group handles what is pending when one runs; the request stands")
	}
}
