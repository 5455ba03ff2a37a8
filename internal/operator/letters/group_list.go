package letters

import (
	"context"
	"fmt"
	"slices"

	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/migrations"
)

// GroupList is letters of groups, oldest first.
type GroupList struct {
	Letters []GroupLetter `json:"letters"`
	More    bool          `json:"more"` // than the limit
	// Problems say that nothing is known of the group that was named.
	Problems []operator.Problem `json:"problems"`
}

// Wrong tells that it answers for a group that is not there.
func (r *GroupList) Wrong() bool { return len(r.Problems) > 0 }

// Behind reports whether letters wait until one that is listed is settled. Two of one
// aggregate have the same ones behind them, so that their numbers are not added.
func (r *GroupList) Behind() bool {
	return slices.ContainsFunc(r.Letters, func(l GroupLetter) bool { return l.Behind > 0 })
}

// ReadGroups lists at most so many letters of groups that are in one of the states.
func ReadGroups(ctx context.Context, db *operator.Database, s GroupFilter, meant []string, limit int) (*GroupList,
	error) {
	rows, err := consumerdb.New(db).ListGroupLetters(ctx, s.query(meant, limit))
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", operator.Explain(err, migrations.Consumer))
	}
	report := &GroupList{Letters: []GroupLetter{}, Problems: []operator.Problem{}}
	for _, v := range rows {
		report.Letters = append(report.Letters, newGroupLetter(v))
	}
	if len(report.Letters) > limit {
		report.Letters, report.More = report.Letters[:limit], true
	}
	if len(rows) == 0 {
		report.Problems, err = unknownGroup(ctx, consumerdb.New(db), s.Group)
	}
	return report, err
}

// unknownGroup says that a group that was named has never begun here: its name may be wrong, or
// the database.
func unknownGroup(ctx context.Context, q *consumerdb.Queries, group string) ([]operator.Problem, error) {
	if group == "" {
		return []operator.Problem{}, nil
	}
	known, err := q.GroupKnown(ctx, group)
	if err != nil {
		return nil, fmt.Errorf("look for group %s: %w", group, operator.Explain(err, migrations.Consumer))
	}
	if known {
		return []operator.Problem{}, nil
	}
	return operator.Problems(fmt.Sprintf("nothing is known of group %s in this database, where it has never begun: `outboxctl windows list` names those that have", group)), nil
}

// OfEvent are those that groups have of one event, of one group where it is named,
// whatever became of them.
func OfEvent(ctx context.Context, q *consumerdb.Queries, key operator.Name, group string) (out []GroupLetter,
	err error) {
	return lettersIn(ctx, q, key, group, EveryState)
}

// UnsettledOfEvent are those of them that can be given up.
func UnsettledOfEvent(ctx context.Context, q *consumerdb.Queries, key operator.Name, group string) ([]GroupLetter,
	error) {
	return lettersIn(ctx, q, key, group, UnsettledStates)
}

func lettersIn(ctx context.Context, q *consumerdb.Queries, key operator.Name, group string,
	meant []string) (out []GroupLetter, err error) {
	s := GroupFilter{Selection: operator.Selection{Keys: []operator.Name{key}}, Group: group}
	rows, err := q.ListGroupLetters(ctx, s.query(meant, operator.MaxListed))
	for _, v := range rows {
		if key.Is(operator.Deref(v.Namespace)) {
			out = append(out, newGroupLetter(v))
		}
	}
	return out, err
}
