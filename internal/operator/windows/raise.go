package windows

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/internal/terminal"
)

// plannedRaise is a floor that lies below where claims are kept, and what it becomes.
type plannedRaise struct {
	*Change
	to time.Time
}

// PlanRaise says to where a floor would be raised: to where claims are kept; by more
// only retention does, which knows what the group has finished. It changes nothing.
func PlanRaise(ctx context.Context, db *operator.Database, group, class string) (operator.Order[*Change], error) {
	p := &plannedRaise{Change: &Change{
		Group: group, Class: class,
		Notes: []string{"members that run go by it within ten seconds; events before it that come yet are late"},
	}}
	q := consumerdb.New(db)
	rows, err := q.ListWindows(ctx, group)
	if err != nil {
		return nil, p.failed("raise", operator.ExplainConsumersMaintainer(err))
	}
	row, err := classOf(rows, class)
	if err != nil {
		return nil, p.failed("raise", operator.ExplainConsumersMaintainer(err))
	}
	if p.to, err = oldestKept(ctx, db, q, row.Floor); err != nil {
		return nil, p.failed("raise", operator.ExplainConsumersMaintainer(err))
	}
	if !p.to.After(row.Floor) {
		return nil, p.failed("raise", fmt.Errorf("its floor %s is not below where claims are kept, from %s on: nothing was done", terminal.Stamp(&row.Floor), terminal.Stamp(&p.to)))
	}
	p.Changed = []string{fmt.Sprintf("floor %s, from %s", terminal.Stamp(&p.to), terminal.Stamp(&row.Floor))}
	return p, nil
}

// Question implements [operator.Order].
func (p *plannedRaise) Question() string {
	return fmt.Sprintf("set %s of class %s of group %s: events before it that come yet are late", p.Changed[0], p.Class, p.Group)
}

// CarryOut raises the floor.
func (p *plannedRaise) CarryOut(ctx context.Context, db *operator.Database, reason string) (*Change, error) {
	p.Reason = reason
	n, err := consumerdb.New(db).RaiseWindow(ctx, consumerdb.RaiseWindowParams{ConsumerGroup: p.Group, Class: p.Class, Floor: p.to, Did: ": " + p.Changed[0], Reason: reason})
	if err == nil && n == 0 {
		err = errors.New("its floor was raised meanwhile: nothing was done")
	}
	if err != nil {
		return nil, p.failed("raise", operator.ExplainConsumersMaintainer(err))
	}
	return p.Change, nil
}

// oldestKept is from when on no claim is gone, which is said while none of a floor lies
// in a partition that could be attached again.
func oldestKept(ctx context.Context, db *operator.Database, q *consumerdb.Queries, floor time.Time) (time.Time, error) {
	leaves, err := partition.Leaves(ctx, db, ClaimsTable)
	if err != nil {
		return time.Time{}, err
	}
	oldest, err := q.Horizon(ctx)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return time.Time{}, err
	}
	attached := func(l partition.Leaf) bool { return l.Attached && !l.Pending }
	for _, l := range leaves {
		if !attached(l) && l.To().After(floor) && l.To().After(oldest) {
			return time.Time{}, fmt.Errorf("partition %s is detached, and may have claims from there on: %s", l.Name, l.AttachAgain(ClaimsTable))
		}
	}
	if i := slices.IndexFunc(leaves, attached); i >= 0 && leaves[i].From().After(oldest) {
		oldest = leaves[i].From()
	}
	return oldest, nil
}
