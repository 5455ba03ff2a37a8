package partitions

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/relay"
	"github.com/onceward/onceward/relay/retention"
)

// Report is what a round did, or would do, to the partitions of events.
type Report struct {
	DryRun    bool               `json:"dry_run"`
	Ahead     int                `json:"ahead"` // days after today that are wanted
	Keep      int                `json:"keep"`  // days before today that are kept
	DaysAhead int                `json:"days_ahead"`
	Made      []string           `json:"partitions_made"`
	Leaves    []Leaf             `json:"partitions"`
	Problems  []operator.Problem `json:"problems"`
}

// Leaf is one partition.
type Leaf struct {
	Name  string    `json:"name"`
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
	State string    `json:"state"`
	Why   string    `json:"why,omitempty"`
	Rows  int64     `json:"rows_estimate"`
	Bytes int64     `json:"bytes"`
}

func newLeaf(r partition.Report) Leaf {
	return Leaf{Name: r.Name, From: r.From, To: r.To, State: string(r.State), Why: r.Why, Rows: r.Rows, Bytes: r.Bytes}
}

// Round makes, closes and drops partitions of events once or, by a dry run, says
// what it would do. What it did is told also with an error, where it did something.
func Round(ctx context.Context, db *operator.Database, cfg retention.Config) (*Report, error) {
	done, failed := maintain(ctx, db, cfg)
	if errors.Is(failed, retention.ErrMaintained) {
		return nil, fmt.Errorf("%w; it does what this command would do", failed)
	}
	report := newPartitionsReport(done, cfg)
	var unwanted *cdc.StartError
	problem := Few(done.Ahead, done.Today, cfg.Ahead)
	if errors.As(failed, &unwanted) && unwanted.Code == cdc.CodeDefaultPartition {
		problem = nil
		if cfg.DryRun {
			problem, failed = unwanted, nil
		}
	}
	if problem != nil {
		report.Problems = append(report.Problems, operator.ProblemOf(problem))
	}
	if operator.ConsumersOnly(ctx, db, failed) {
		return nil, fmt.Errorf("database %s has Onceward's consumer side and no outbox: connect to the producer's database; the consumer side has `outboxctl partitions maintain --side consumer`", db.Name)
	}
	failed = operator.ExplainMaintainer(failed)
	if failed != nil && len(report.Leaves) == 0 {
		return nil, failed
	}
	filled, err := Filled(ctx, outboxdb.New(db))
	if err != nil {
		return nil, errors.Join(failed, err)
	}
	report.Problems = append(report.Problems, filled...)
	return report, failed
}

// Filled says for which partitions relays stop.
func Filled(ctx context.Context, q *outboxdb.Queries) (problems []operator.Problem, err error) {
	filled, err := q.FilledPartitions(ctx)
	if err != nil {
		return nil, operator.Explain(err, migrations.Outbox)
	}
	for _, leaf := range filled.Leaves() {
		problem := operator.NewProblem(fmt.Sprintf("%[1]s held rows when it was attached, which no relay is sent (%[2]s): as the maintainer `outboxctl partitions adopt %[1]s --reason \"…\"`, or detach it again", leaf, relay.CodePartitionFilled))
		problem.Check, problem.Code = "partitions", relay.CodePartitionFilled
		problems = append(problems, problem)
	}
	return problems, nil
}

func maintain(ctx context.Context, db *operator.Database, cfg retention.Config) (report retention.Report, err error) {
	err = db.Direct(ctx, func(conn *pgx.Conn) (err error) {
		report, err = retention.Maintain(ctx, conn, cfg)
		return err
	})
	return report, err
}

func newPartitionsReport(done retention.Report, cfg retention.Config) *Report {
	r := &Report{DryRun: cfg.DryRun, Ahead: cfg.Ahead, Keep: cfg.Keep, DaysAhead: done.Ahead,
		Made: operator.NotNil(done.Made), Leaves: []Leaf{},
		Problems: []operator.Problem{}}
	if done.Taken != "" {
		r.Problems = append(r.Problems, operator.NewProblem(done.Taken))
	}
	for _, l := range done.Leaves {
		r.Leaves = append(r.Leaves, newLeaf(partition.Report(l)))
		if l.Wrong {
			r.Problems = append(r.Problems, operator.NewProblem(l.Name+": "+l.Why))
		}
	}
	return r
}

// Wrong tells that there are problems.
func (r *Report) Wrong() bool { return len(r.Problems) > 0 }
