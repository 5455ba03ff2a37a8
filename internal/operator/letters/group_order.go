package letters

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/migrations"
)

// discardedKept is how long a discarded letter of a group is kept.
const discardedKept = 30 * 24 * time.Hour

// Decision is what is done to letters of groups.
type Decision struct {
	action string
	verb   string                     // for questions
	unable func(l GroupLetter) string // why it cannot be done to a letter; "" when it can
	states []string
	write  func(ctx context.Context, q *consumerdb.Queries, letters []GroupLetter, reason string) error
	judge  func(before GroupLetter, found bool, is groupNow) GroupOutcome
}

// What can be decided about letters of groups.
var (
	// Redrive makes the group handle them again, once.
	Redrive = Decision{action: "redrive", verb: "handle again", states: []string{states.LetterOpen}, unable: unreadable, write: requestRedrive, judge: judgeRedrive}
	// Discard gives them up for good.
	Discard = Decision{action: "discard", verb: "give up for good", states: UnsettledStates, unable: able, write: discardLetters, judge: judgeDiscard}
)

// GroupOrder is a decision about letters that wait for one.
type GroupOrder struct {
	decision Decision
	letters  []GroupLetter
	reason   string
}

// unreadable says why a range that no member could read is not handled again.
func unreadable(l GroupLetter) string {
	if l.Cause != states.CauseUnreadable {
		return ""
	}
	return fmt.Sprintf("%s stands for messages that no member could read, and holds nothing to handle: `outboxctl dead show --side consumer %s` says how to have them read; "+
		"then, or to give them up, discard it; --cause leaves it out", l.Place, l.Place)
}

func able(GroupLetter) string { return "" }

// PlanDecision finds the letters that are meant and wait. It changes nothing. Where there is
// nothing to do there is no order, and a report says why: a PLACE or KEY without such a
// letter is a problem. One of which several groups have letters is unclear: a letter is a
// matter of its group.
func PlanDecision(ctx context.Context, db *operator.Database, d Decision, s GroupFilter) (*GroupOrder, *GroupBecame,
	error) {
	q := consumerdb.New(db)
	rows, err := q.ListGroupLetters(ctx, s.query(d.states, operator.MaxListed))
	if err != nil {
		return nil, nil, fmt.Errorf("look for letters: %w", operator.Explain(err, migrations.Consumer))
	}
	if len(rows) > operator.MaxListed {
		return nil, nil, fmt.Errorf("more than %d letters: narrow the filters, for example with --from and --to", operator.MaxListed)
	}
	nothing := &GroupBecame{Action: d.action, Letters: []GroupOutcome{}, Problems: []operator.Problem{}}
	found := make(map[string][]string, 2*len(rows)) // groups
	o := &GroupOrder{decision: d}
	for _, v := range rows {
		l := newGroupLetter(v)
		if s.elsewhere(l) {
			continue
		}
		for _, text := range []string{l.Key, l.Place} {
			if !slices.Contains(found[text], l.Group) {
				found[text] = append(found[text], l.Group)
			}
		}
		o.letters = append(o.letters, l)
		if why := d.unable(l); why != "" {
			nothing.Problems = append(nothing.Problems, operator.NewProblem(why))
		}
	}
	why, parked, err := s.parked(ctx, q, d, len(o.letters) > 0, func(text string) bool { return found[text] != nil })
	if err != nil {
		return nil, nil, fmt.Errorf("look for letters: %w", operator.Explain(err, migrations.Consumer))
	}
	nothing.Problems = append(nothing.Problems, operator.Problems(why...)...)
	why, requested, err := s.requested(ctx, q, d, func(text string) bool { return found[text] != nil })
	if err != nil {
		return nil, nil, fmt.Errorf("look for letters: %w", operator.Explain(err, migrations.Consumer))
	}
	nothing.Problems = append(nothing.Problems, operator.Problems(why...)...)
	unknown, err := unknownGroup(ctx, q, s.Group)
	if err != nil {
		return nil, nil, err
	}
	for _, text := range s.given() {
		if groups := found[text]; len(groups) > 1 {
			return nil, nil, operator.Unclear("whose letter? of %s there are letters of the groups %s; give --group", text, strings.Join(groups, ", "))
		}
		if found[text] == nil && !slices.Contains(slices.Concat(parked, requested), text) && len(unknown) == 0 {
			nothing.Problems = append(nothing.Problems, operator.NewProblem(fmt.Sprintf("%s is no dead letter%s that can be decided; `outboxctl dead show --side consumer %s` tells what became of it", text, s.ofGroup(), text)))
		}
	}
	nothing.Problems = append(nothing.Problems, unknown...)
	if len(nothing.Problems) > 0 || len(o.letters) == 0 {
		return nil, nothing, nil
	}
	return o, nil, nil
}

// Question says what the order would do.
func (o *GroupOrder) Question() string { return o.decision.verb + " " + summary(o.letters) }

// Count is how many letters the order is about.
func (o *GroupOrder) Count() int { return len(o.letters) }

// Give writes the order in small transactions, and says before each, and in the end, how
// many letters are decided.
func (o *GroupOrder) Give(ctx context.Context, db *operator.Database, reason string, decided func(letters int)) error {
	o.reason = reason
	for at := 0; at < len(o.letters); at += maxAtOnce {
		decided(at)
		if err := o.decision.write(ctx, consumerdb.New(db), o.letters[at:min(at+maxAtOnce, len(o.letters))],
			reason); err != nil {
			return fmt.Errorf("%w; the letters before this were decided: %d of %d", operator.Explain(err, migrations.Consumer), at, len(o.letters))
		}
	}
	decided(len(o.letters))
	return nil
}

// summary counts letters by group and cause, for a question.
func summary(letters []GroupLetter) string {
	type kind struct{ group, cause string }
	counts := make(map[kind]int)
	var kinds []kind
	for _, l := range letters {
		k := kind{l.Group, l.Cause}
		if counts[k] == 0 {
			kinds = append(kinds, k)
		}
		counts[k]++
	}
	var parts []string
	for _, k := range kinds {
		parts = append(parts, fmt.Sprintf("%d %s of group %s", counts[k], k.cause, k.group))
	}
	return fmt.Sprintf("%s (%s)", label.Count(len(letters), "dead letter"), strings.Join(parts, ", "))
}

// refs takes letters apart into the arrays that a statement wants.
func refs(letters []GroupLetter) (p consumerdb.RequestRedriveParams) {
	for _, l := range letters {
		p.ConsumerGroups, p.Topics = append(p.ConsumerGroups, l.Group), append(p.Topics, l.At.Topic)
		p.KafkaPartitions, p.KafkaOffsets = append(p.KafkaPartitions, l.At.Partition), append(p.KafkaOffsets,
			l.At.Offset)
		p.Generations = append(p.Generations, l.Generation)
	}
	return p
}

// requestRedrive leaves alone what another operator or a member has decided
// meanwhile: the generation tells.
func requestRedrive(ctx context.Context, q *consumerdb.Queries, letters []GroupLetter, reason string) error {
	p := refs(letters)
	p.Reason = reason
	_, err := q.RequestRedrive(ctx, p)
	return err
}

func discardLetters(ctx context.Context, q *consumerdb.Queries, letters []GroupLetter, reason string) error {
	p := refs(letters)
	_, err := q.DiscardGroupLetters(ctx, consumerdb.DiscardGroupLettersParams{
		ConsumerGroups: p.ConsumerGroups, Topics: p.Topics, KafkaPartitions: p.KafkaPartitions,
		KafkaOffsets: p.KafkaOffsets, Generations: p.Generations,
		Reason: reason, Keep: pgtype.Interval{Microseconds: discardedKept.Microseconds(), Valid: true},
	})
	return err
}
