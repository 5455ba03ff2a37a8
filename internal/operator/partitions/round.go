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
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/relay"
	"github.com/onceward/onceward/relay/retention"
)

// FewDaysAhead: with fewer partitions ahead than this it is time to act.
const FewDaysAhead = 7

// Report is what a round did, or would do, to the partitions of events.
type Report struct {
	DryRun    bool     `json:"dry_run"`
	DaysAhead int      `json:"days_ahead"`
	Made      []string `json:"partitions_made"`
	Leaves    []Leaf   `json:"partitions"`
	Problems  []string `json:"problems"`
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

// Round makes, closes and drops partitions of events once or, by a dry run, says
// what it would do. What it did is told also with an error, where it did something.
func Round(ctx context.Context, db *operator.Database, cfg retention.Config) (*Report, error) {
	sizes, err := leafSizes(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("read sizes of partitions: %w", operator.Explain(err, migrations.Outbox))
	}
	done, failed := maintain(ctx, db, cfg)
	if errors.Is(failed, retention.ErrMaintained) {
		return nil, fmt.Errorf("%w; it does what this command would do", failed)
	}
	report := newPartitionsReport(done, sizes, cfg.DryRun)
	var unwanted *cdc.StartError
	problem := Few(done.Ahead, done.Today)
	if errors.As(failed, &unwanted) && unwanted.Code == cdc.CodeDefaultPartition {
		problem = ""
		if cfg.DryRun {
			problem, failed = unwanted.Error(), nil
		}
	}
	if problem != "" {
		report.Problems = append(report.Problems, problem)
	}
	failed = operator.ExplainMaintainer(failed)
	filled, err := Filled(ctx, outboxdb.New(db))
	if err != nil {
		return nil, errors.Join(failed, err)
	}
	report.Problems = append(report.Problems, filled...)
	if failed != nil && len(report.Leaves) == 0 {
		return nil, failed
	}
	return report, failed
}

// Filled says for which partitions relays stop.
func Filled(ctx context.Context, q *outboxdb.Queries) (problems []string, err error) {
	filled, err := q.FilledPartitions(ctx)
	if err != nil {
		return nil, operator.Explain(err, migrations.Outbox)
	}
	for _, leaf := range filled.Leaves() {
		problems = append(problems, fmt.Sprintf("%[1]s held rows when it was attached, which no relay is sent (%[2]s): as the maintainer `outboxctl partitions adopt %[1]s --reason \"…\"`, or detach it again", leaf, relay.CodePartitionFilled))
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

// leafSizes is what the catalog says of the partitions: rows at the last
// ANALYZE, and bytes on disk with indexes and large values.
func leafSizes(ctx context.Context, db *operator.Database) (map[string][2]int64, error) {
	rows, err := db.Query(ctx, `SELECT c.relname::text, c.reltuples::bigint, pg_catalog.pg_total_relation_size(c.oid)
FROM pg_catalog.pg_class c WHERE c.relnamespace = 'onceward'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^outbox_[0-9]{8}$'`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	sizes := make(map[string][2]int64)
	for rows.Next() {
		var name string
		var size [2]int64
		if err := rows.Scan(&name, &size[0], &size[1]); err != nil {
			return nil, err
		}
		sizes[name] = size
	}
	return sizes, rows.Err()
}

func newPartitionsReport(done retention.Report, sizes map[string][2]int64, dryRun bool) *Report {
	r := &Report{DryRun: dryRun, DaysAhead: done.Ahead, Made: operator.NotNil(done.Made), Leaves: []Leaf{}, Problems: []string{}}
	if done.Taken != "" {
		r.Problems = append(r.Problems, done.Taken)
	}
	for _, l := range done.Leaves {
		size := sizes[l.Name]
		r.Leaves = append(r.Leaves, Leaf{Name: l.Name, From: l.From, To: l.To, State: string(l.State), Why: l.Why, Rows: size[0], Bytes: size[1]})
		if l.Wrong {
			r.Problems = append(r.Problems, l.Name+": "+l.Why)
		}
	}
	return r
}

// Wrong tells that there are problems.
func (r *Report) Wrong() bool { return len(r.Problems) > 0 }
