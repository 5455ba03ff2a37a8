package letters

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/migrations"
)

// GroupBecame is what became of a decision.
type GroupBecame struct {
	Action   string             `json:"action"`
	Reason   string             `json:"reason,omitempty"`
	Waited   bool               `json:"waited"`
	Letters  []GroupOutcome     `json:"letters"`
	Problems []operator.Problem `json:"problems"` // why nothing was decided
}

// GroupOutcome is what became of a decision for one letter.
type GroupOutcome struct {
	Group   string `json:"group"`
	Place   string `json:"place"`
	Key     string `json:"key,omitempty"`
	Outcome string `json:"outcome"` // done, pending or failed
	Detail  string `json:"detail"`
}

// groupNow is how a letter stands.
type groupNow struct {
	state      string
	generation int32
	attempts   int32
	error      string
}

func (l GroupLetter) outcome(outcome, format string, args ...any) GroupOutcome {
	return GroupOutcome{Group: l.Group, Place: l.Place, Key: l.Key, Outcome: outcome,
		Detail: fmt.Sprintf(format, args...)}
}

// judgeRedrive says what became of a redrive. It is pure. The generation counts
// the redrives that were asked for: ours is the one after that of the letter
// that was found.
func judgeRedrive(before GroupLetter, found bool, is groupNow) GroupOutcome {
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
func judgeDiscard(before GroupLetter, found bool, is groupNow) GroupOutcome {
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

// Await looks at the letters until the groups have settled all of them or the
// time is over. The decision stands in any case. Where it lasts, tell is given once what
// it waits for.
func (o *GroupOrder) Await(ctx context.Context, db *operator.Database, limit time.Duration,
	tell func(waiting string)) (report *GroupBecame, err error) {
	err = operator.PollTelling(ctx, limit, func() { tell(report.waiting(limit)) }, func() (pending bool, err error) {
		report, pending, err = o.look(ctx, consumerdb.New(db))
		return pending, err
	})
	if err != nil {
		return nil, fmt.Errorf("%w; wait for the group: %w", ErrOrderGiven, operator.Explain(err, migrations.Consumer))
	}
	report.Action, report.Reason, report.Waited = o.decision.action, o.reason, limit > 0
	return report, nil
}

// waiting says whose members are waited for.
func (r *GroupBecame) waiting(limit time.Duration) string {
	var groups []string
	for _, l := range r.Letters {
		if l.Outcome == states.OutcomePending && !slices.Contains(groups, l.Group) {
			groups = append(groups, l.Group)
		}
	}
	of := "group "
	if len(groups) > 1 {
		of = "the groups "
	}
	return fmt.Sprintf("waiting for a member of %s, %s at most (--wait); the request stands when this ends", of+strings.Join(groups, ", "), limit)
}

// look judges every letter.
func (o *GroupOrder) look(ctx context.Context, q *consumerdb.Queries) (report *GroupBecame, pending bool, err error) {
	p := refs(o.letters)
	rows, err := q.GroupLettersNow(ctx, consumerdb.GroupLettersNowParams{
		ConsumerGroups: p.ConsumerGroups, Topics: p.Topics, KafkaPartitions: p.KafkaPartitions,
		KafkaOffsets: p.KafkaOffsets,
	})
	if err != nil {
		return nil, false, err
	}
	type ref struct {
		group string
		at    Place
	}
	now := make(map[ref]groupNow, len(rows))
	for _, v := range rows {
		at := ref{v.ConsumerGroup, Place{v.Topic, v.KafkaPartition, v.KafkaOffset}}
		now[at] = groupNow{state: v.State, generation: v.Generation, attempts: v.Attempts, error: v.Error}
	}
	report = &GroupBecame{Letters: []GroupOutcome{}, Problems: []operator.Problem{}}
	for _, l := range o.letters {
		is, found := now[ref{l.Group, l.At}]
		became := o.decision.judge(l, found, is)
		pending = pending || became.Outcome == states.OutcomePending
		report.Letters = append(report.Letters, became)
	}
	return report, pending, nil
}

// Wrong tells that nothing was decided for a problem, or that a letter is not as was
// wanted, also because no member of its group handled it in the time that it was given.
func (r *GroupBecame) Wrong() bool { return len(r.Problems) > 0 || wentWrong(r.Outcomes(), r.Waited) }

// Outcomes are those of the letters, in their order.
func (r *GroupBecame) Outcomes() []string {
	out := make([]string, len(r.Letters))
	for i, l := range r.Letters {
		out[i] = l.Outcome
	}
	return out
}
