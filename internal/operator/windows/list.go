package windows

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/consumer"
	consumeraudit "github.com/onceward/onceward/consumer/audit"
	"github.com/onceward/onceward/consumer/retention"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/audit"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/migrations"
)

// Report is the JSON answer of windows list.
type Report struct {
	Windows         []Window           `json:"windows"`
	OldestPartition *time.Time         `json:"oldest_partition"`
	Horizon         *time.Time         `json:"horizon"` // claims before it may be gone, but for groups that were adopted
	Problems        []operator.Problem `json:"problems"`
}

// Window is one class of a group.
type Window struct {
	Group      string     `json:"group"`
	Class      string     `json:"class"`
	Window     string     `json:"window"`
	Bucket     string     `json:"bucket"`     // of arrivals; of one window until a program of this release registers it
	OldBucket  string     `json:"old_bucket"` // in which arrivals are claimed as well; empty: none
	Late       string     `json:"late"`
	Replay     string     `json:"replay"`
	Keyed      string     `json:"keyed"`
	Floor      time.Time  `json:"floor"`
	Next       time.Time  `json:"next_floor"`    // where retention may raise it
	Behind     string     `json:"behind"`        // by how much that is behind the clock minus the window
	StreamTime *time.Time `json:"stream_time"`   // up to where the group has finished all it reads
	Slowest    string     `json:"slowest"`       // the topic partition that says so
	Why        string     `json:"held_back_by"`  // empty: nothing
	Wrong      bool       `json:"stands_still"`  // while the table grows
	Registered time.Time  `json:"registered_at"` //
	Retired    *time.Time `json:"retired_at"`    //
}

// List lists the classes of one group where it is named, and of all where it is empty.
// It asks retention what it would do, which needs no right but to read.
func List(ctx context.Context, db *operator.Database, group string) (*Report, error) {
	report, err := list(ctx, db, group)
	if err != nil {
		return nil, operator.Explain(err, migrations.Consumer)
	}
	return report, nil
}

func list(ctx context.Context, db *operator.Database, group string) (*Report, error) {
	q := consumerdb.New(db)
	rows, err := q.ListWindows(ctx, group)
	if err != nil {
		return nil, err
	}
	marks, err := q.SlowestMarks(ctx)
	if err != nil {
		return nil, err
	}
	var plan retention.Report
	err = db.Direct(ctx, func(conn *pgx.Conn) (err error) {
		plan, err = retention.Maintain(ctx, conn, retention.Config{DryRun: true})
		return err
	})
	report := &Report{Windows: []Window{}, Problems: []operator.Problem{}}
	err = operator.OthersThan(err, consumer.ErrDefaultPartition) // the finding says that one
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg) && pg.Code == "55P03": // lock_not_available
		report.Problems = append(report.Problems, audit.NotFinished(fmt.Sprintf("floors: a lock was waited for longer than %s, so that what holds them back is not known; "+
			"pg_stat_activity shows whether a session holds a lock: end that and look again", retention.DefaultLockTimeout)))
	case operator.OthersThan(err, partition.ErrTaken) != nil:
		return nil, err
	case err != nil:
		report.Problems = append(report.Problems, operator.ProblemOf(err))
	}
	if err := report.checkPartitions(ctx, db, group); err != nil {
		return nil, err
	}
	if !plan.Horizon.IsZero() {
		report.Horizon = &plan.Horizon
	}
	for _, v := range rows {
		w := Window{
			Group: v.ConsumerGroup, Class: v.Class,
			Window: terminal.Length(time.Duration(v.WindowMs) * time.Millisecond), Late: v.Late, Replay: v.Replay,
			Keyed: v.Keyed,
			Floor: v.Floor.UTC(), Next: v.Floor.UTC(), Registered: v.RegisteredAt.UTC(), Retired: v.RetiredAt,
		}
		b := BucketsOf(v)
		w.Bucket = terminal.Length(b.Length)
		if b.Changing(time.Now()) {
			w.OldBucket = terminal.Length(b.Old)
		}
		for _, f := range plan.Floors {
			if f.Group == v.ConsumerGroup && f.Class == v.Class {
				w.Next, w.Behind, w.Why, w.Wrong = f.After.UTC(), terminal.Length(f.Behind), f.Why, f.Wrong
			}
		}
		for _, m := range marks {
			if m.ConsumerGroup == v.ConsumerGroup {
				w.StreamTime, w.Slowest = m.FinishedTime, fmt.Sprintf("%s/%d", m.Topic, m.KafkaPartition)
			}
		}
		report.Windows = append(report.Windows, w)
	}
	return report, nil
}

// checkPartitions says what is wrong with the partitions that the windows need, and
// which is the oldest of those that are in use.
func (r *Report) checkPartitions(ctx context.Context, db *operator.Database, group string) error {
	found, err := consumeraudit.Check(ctx, db, consumeraudit.Config{Group: group, Catalog: true})
	if err = operator.OthersThan(err, consumer.ErrDefaultPartition); err != nil {
		return err
	}
	for _, f := range audit.NewFindings(found) {
		if f.Check != "fence" { // which no window waits for
			r.Problems = append(r.Problems, f.Problem())
		}
	}
	for _, cut := range found.Unfinished {
		r.Problems = append(r.Problems, audit.NotFinished(cut))
	}
	if len(found.Unfinished) > 0 {
		return nil // a lock that audit gave up would be waited for without an end
	}
	leaves, err := partition.Leaves(ctx, db, ClaimsTable)
	if err != nil && !errors.Is(err, partition.ErrDefault) {
		return err
	}
	attached := func(l partition.Leaf) bool { return l.Attached && !l.Pending }
	if i := slices.IndexFunc(leaves, attached); i >= 0 {
		from := leaves[i].From()
		r.OldestPartition = &from
	}
	return nil
}

// Wrong tells that a class stands still, or a partition that is needed is missing,
// detached or wrong.
func (r *Report) Wrong() bool {
	return len(r.Problems) > 0 || slices.ContainsFunc(r.Windows, func(w Window) bool { return w.Wrong })
}
