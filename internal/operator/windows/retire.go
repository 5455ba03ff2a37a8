package windows

import (
	"context"
	"fmt"
	"time"

	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/migrations"
)

// restedFor is for how long a group must not have saved progress before it, or
// its place in a topic, is given up: one that runs saves it every few seconds
// while it has something to do.
const restedFor = time.Minute

// Retirement is what is not used any more: a group, a class of it, or its place in
// a topic.
type Retirement struct {
	Group string
	Class string  // empty: all
	Topic *string // nil: it is not about a topic
}

// plannedRetirement is a retirement that nothing speaks against.
type plannedRetirement struct {
	Retirement
	last *time.Time // when the group saved progress last; nil: never, or it does not matter
}

// PlanRetire refuses while the group saves progress of what is to be given up. It
// changes nothing.
func PlanRetire(ctx context.Context, db *operator.Database, r Retirement) (operator.Order[*Change], error) {
	p, q, err := &plannedRetirement{Retirement: r}, consumerdb.New(db), error(nil)
	switch {
	case r.Topic != nil:
		p.last, err = rested(ctx, q, consumerdb.MarksOfGroupParams{ConsumerGroup: r.Group, OneTopic: true,
			Topic: *r.Topic})
		if err == nil && p.last == nil {
			err = fmt.Errorf("group %s has no marks of topic %q; `outboxctl windows list` shows what holds its stream time back", r.Group, *r.Topic)
		}
	case r.Class == "":
		p.last, err = rested(ctx, q, consumerdb.MarksOfGroupParams{ConsumerGroup: r.Group})
	}
	return p, err
}

// Question implements [operator.Order].
func (p *plannedRetirement) Question() string {
	if p.Topic != nil {
		return fmt.Sprintf("let the stream time of group %s go on without topic %q; how far it has got there is kept, should it read the topic again", p.Group, *p.Topic)
	}
	return fmt.Sprintf("retire group %s%s: retention drops claims that only it still needs", p.Group, OfClass(p.Class))
}

// CarryOut retires it.
func (p *plannedRetirement) CarryOut(ctx context.Context, db *operator.Database, reason string) (change *Change,
	err error) {
	change = &Change{Group: p.Group, Class: p.Class, Topic: p.Topic, Reason: reason, Notes: []string{}}
	if p.Topic != nil {
		err = p.retireTopic(ctx, consumerdb.New(db), change)
	} else {
		err = p.retireClasses(ctx, consumerdb.New(db), change)
	}
	if err != nil {
		return nil, fmt.Errorf("windows retire %s: %w", p.Group, operator.Explain(err, migrations.Consumer))
	}
	return change, nil
}

func (p *plannedRetirement) retireClasses(ctx context.Context, q *consumerdb.Queries, change *Change) error {
	n, err := q.RetireWindows(ctx, consumerdb.RetireWindowsParams{ConsumerGroup: p.Group, Class: p.Class,
		Reason: change.Reason})
	marks := int64(0)
	if err == nil && p.last != nil { // who reads nothing any more holds nothing back
		marks, err = q.RetireTopic(ctx, consumerdb.RetireTopicParams{ConsumerGroup: p.Group, AllTopics: true,
			SavedUntil: *p.last, Reason: change.Reason})
	}
	if err == nil && n+marks == 0 {
		err = errNoClass
	}
	change.Changed = []string{label.Count(n, "class", "classes") + " retired"}
	if n == 0 { // it has none, or they were retired before
		change.Changed = []string{fmt.Sprintf("marks of %s retired", label.Count(marks, "partition"))}
	}
	change.Notes = []string{"a program that has them in its configuration registers them again, with floors above what was dropped meanwhile"}
	return err
}

func (p *plannedRetirement) retireTopic(ctx context.Context, q *consumerdb.Queries, change *Change) error {
	n, err := q.RetireTopic(ctx, consumerdb.RetireTopicParams{ConsumerGroup: p.Group, Topic: *p.Topic,
		SavedUntil: *p.last, Reason: change.Reason})
	change.Changed = []string{fmt.Sprintf("marks of %s of topic %q retired", label.Count(n, "partition"), *p.Topic)}
	return err
}

// rested refuses while the group saves progress of what is to be given up. It
// returns when it did so last; nil: never.
func rested(ctx context.Context, q *consumerdb.Queries, what consumerdb.MarksOfGroupParams) (last *time.Time,
	err error) {
	rows, err := q.MarksOfGroup(ctx, what)
	if err != nil {
		return nil, fmt.Errorf("read the group's progress: %w", operator.Explain(err, migrations.Consumer))
	}
	for i, v := range rows {
		if ago := time.Duration(v.SecondsAgo * float64(time.Second)); ago < restedFor {
			return nil, fmt.Errorf("group %s runs: it saved its progress in %s/%d %s ago; stop it, and try again a minute later",
				what.ConsumerGroup, v.Topic, v.KafkaPartition, ago.Round(time.Second))
		}
		if last == nil || v.UpdatedAt.After(*last) {
			last = &rows[i].UpdatedAt
		}
	}
	return last, nil
}
