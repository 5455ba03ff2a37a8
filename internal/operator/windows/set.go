package windows

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/migrations"
)

// Setting is what is to be changed of a class; what is zero stays as it is.
type Setting struct {
	Group, Class string
	Window       time.Duration
	Late, Replay string
}

// Changes says in words what is to be changed.
func (s Setting) Changes() (out []string) {
	if s.Window != 0 {
		out = append(out, "window "+terminal.Length(s.Window))
	}
	if s.Late != "" {
		out = append(out, "late "+s.Late)
	}
	if s.Replay != "" {
		out = append(out, "replay "+s.Replay)
	}
	return out
}

// plannedSet is a setting, and what comes of it.
type plannedSet struct {
	*Change
	params consumerdb.SetWindowParams
}

// PlanSet says what a setting changes. It changes nothing.
func PlanSet(ctx context.Context, db *operator.Database, s Setting) (operator.Order[*Change], error) {
	p := &plannedSet{
		Change: &Change{
			Group: s.Group, Class: s.Class, Changed: s.Changes(),
			Notes: []string{"members that run go by it within ten seconds, retention from its next run on"},
		},
		params: consumerdb.SetWindowParams{
			ConsumerGroup: s.Group, Class: s.Class, NewWindow: interval(s.Window), NewLate: operator.Optional(s.Late),
			NewReplay: operator.Optional(s.Replay),
		},
	}
	if err := p.changeBuckets(ctx, consumerdb.New(db)); err != nil {
		return nil, p.failed("set", operator.Explain(err, migrations.Consumer))
	}
	p.params.Did = ": " + strings.Join(p.Changed, ", ")
	return p, nil
}

// Question implements [operator.Order].
func (p *plannedSet) Question() string {
	return fmt.Sprintf("set %s of class %s of group %s", strings.Join(p.Changed, ", "), p.Class, p.Group)
}

// CarryOut changes the class.
func (p *plannedSet) CarryOut(ctx context.Context, db *operator.Database, reason string) (*Change, error) {
	p.Reason, p.params.Reason = reason, reason
	n, err := consumerdb.New(db).SetWindow(ctx, p.params)
	if err == nil && n == 0 {
		err = errNoClass
	}
	if err != nil {
		return nil, p.failed("set", operator.Explain(err, migrations.Consumer))
	}
	return p.Change, nil
}

// interval is a length for the database; none where it is 0.
func interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: d != 0}
}

// changeBuckets says of a new window what becomes of the buckets in which the class
// claims by arrival.
func (p *plannedSet) changeBuckets(ctx context.Context, q *consumerdb.Queries) error {
	rows, err := q.ListWindows(ctx, p.Group)
	if err != nil {
		return err
	}
	now, err := q.DatabaseTime(ctx)
	if err != nil {
		return err
	}
	row, err := classOf(rows, p.Class)
	if err != nil || !p.params.NewWindow.Valid {
		return err
	}
	keyed, window := consumer.Keying(row.Keyed), time.Duration(p.params.NewWindow.Microseconds)*time.Microsecond
	length, buckets := claims.BucketOf(row.Keyed, window), BucketsOf(row)
	switch {
	case keyed == consumer.ByArrival && length != window:
		return operator.Unclear("--window %s: want at most %s of a class that is keyed by arrival", terminal.Length(window), terminal.Length(length))
	case keyed == consumer.ByEventTime:
		p.Notes = append(p.Notes, "a program whose configuration says a longer window lengthens it again at its next start: change the configuration first")
	}
	if row.BucketMs == 0 && window.Milliseconds() != row.WindowMs {
		return fmt.Errorf("no program of this release has registered it: the buckets of arrivals are as long as its window until then, and copies of what is claimed in them would be applied again; "+
			"start the group's program first, or retire the class where there is none any more: `outboxctl windows retire --class %s --reason \"…\" %s`",
			terminal.Word(p.Class), terminal.Arguments(p.Group))
	}
	if row.BucketMs == 0 || length == buckets.Length {
		return nil
	}
	if buckets.Changing(now) {
		return fmt.Errorf("its buckets are being changed from %s to %s until %s: try again then", terminal.Length(buckets.Old), terminal.Length(buckets.Length), buckets.OldUntil.UTC().Format(time.RFC3339))
	}
	p.params.NewBucket = interval(length)
	p.Changed = append(p.Changed, fmt.Sprintf("buckets of arrivals %s, from %s", terminal.Length(length), terminal.Length(buckets.Length)))
	p.Notes = append(p.Notes, "what is claimed by arrival is claimed in the buckets of before as well until no copy can miss it any more")
	return nil
}
