package partitions

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer"
	consumeraudit "github.com/onceward/onceward/consumer/audit"
	"github.com/onceward/onceward/consumer/retention"
	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/audit"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/migrations"
)

// fewClaimDaysAhead is the same for claims: those by arrival lie up to two buckets of
// 31 days ahead.
const fewClaimDaysAhead = 62

// overdueAfter is for how long something may lie that could have been removed,
// before somebody should look.
const overdueAfter = 48 * time.Hour

// ClaimsReport is what a round did, or would do, to the partitions of claims, and to what
// expires by rows.
type ClaimsReport struct {
	DryRun         bool               `json:"dry_run"`
	DaysAhead      int                `json:"days_ahead"`
	Made           []string           `json:"partitions_made"`
	Bytes          int64              `json:"bytes"`
	Blocked        string             `json:"blocked,omitempty"` // why those that are missing could not be made
	Growing        bool               `json:"growing"`           // claims were made of events of today or yesterday
	Horizon        *time.Time         `json:"horizon"`           // claims before it may be gone
	OverdueSeconds int64              `json:"overdue_seconds"`   // of the oldest partition that every floor has passed
	Floors         []Floor            `json:"floors"`
	Leaves         []Leaf             `json:"partitions"`
	Rows           []Expiry           `json:"rows"`
	Findings       []audit.Finding    `json:"findings"`
	Problems       []operator.Problem `json:"problems"`
}

// Floor is the floor of one class, before and after.
type Floor struct {
	Group         string    `json:"group"`
	Class         string    `json:"class"`
	WindowSeconds int64     `json:"window_seconds"`
	Before        time.Time `json:"floor_before"`
	After         time.Time `json:"floor"`
	BehindSeconds int64     `json:"behind_seconds"` // behind the clock minus the window
	Retired       bool      `json:"retired"`
	Why           string    `json:"why,omitempty"`
}

// Expiry is a table of which rows expire.
type Expiry struct {
	Table      string `json:"table"`
	Removed    int64  `json:"removed"`
	LagSeconds int64  `json:"lag_seconds"` // since the first of those that are left expired
}

// RoundOfClaims raises floors, and makes and drops partitions of claims once or, by a dry
// run, says what it would do. What it did is told also with an error, where it did
// something.
func RoundOfClaims(ctx context.Context, db *operator.Database, cfg retention.Config) (*ClaimsReport, error) {
	done, failed := maintainClaims(ctx, db, cfg)
	if errors.Is(failed, retention.ErrMaintained) {
		return nil, fmt.Errorf("%w; it does what this command would do", failed)
	}
	// The finding says that one.
	failed = operator.ExplainConsumersMaintainer(operator.OthersThan(failed, consumer.ErrDefaultPartition))
	nothing := len(done.Leaves) == 0 || len(done.Floors) == 0 && operator.Denied(failed)
	if failed != nil && nothing {
		return nil, failed
	}
	found, err := consumeraudit.Check(ctx, db, consumeraudit.Config{Catalog: true})
	if err = operator.OthersThan(err, consumer.ErrDefaultPartition); err != nil {
		return nil, errors.Join(failed, operator.Explain(err, migrations.Consumer))
	}
	report := NewClaimsReport(done, found, cfg.DryRun)
	if cfg.DryRun && errors.Is(failed, partition.ErrTaken) { // who only looks has not failed
		report.Problems, failed = append(report.Problems, operator.ProblemOf(failed)), operator.OthersThan(failed,
			partition.ErrTaken)
	}
	return report, failed
}

func maintainClaims(ctx context.Context, db *operator.Database, cfg retention.Config) (report retention.Report,
	err error) {
	err = db.Direct(ctx, func(conn *pgx.Conn) (err error) {
		report, err = retention.Maintain(ctx, conn, cfg)
		return err
	})
	return report, err
}

// NewClaimsReport joins what a round did and what audit finds in the catalog.
func NewClaimsReport(done retention.Report, found consumeraudit.Report, dryRun bool) *ClaimsReport {
	r := &ClaimsReport{
		DryRun: dryRun, DaysAhead: done.Ahead, Made: operator.NotNil(done.Made), Bytes: done.Bytes,
		Blocked: done.Blocked, Growing: done.Growing, OverdueSeconds: seconds(done.Overdue),
		Floors: []Floor{}, Leaves: []Leaf{}, Rows: []Expiry{}, Findings: audit.NewFindings(found),
		Problems: []operator.Problem{},
	}
	if !done.Horizon.IsZero() {
		r.Horizon = &done.Horizon
	}
	for _, f := range done.Floors {
		r.Floors = append(r.Floors, Floor{
			Group: f.Group, Class: f.Class, WindowSeconds: seconds(f.Window), Before: f.Before, After: f.After,
			BehindSeconds: seconds(f.Behind), Retired: f.Retired, Why: f.Why,
		})
	}
	for _, l := range done.Leaves {
		r.Leaves = append(r.Leaves, newLeaf(partition.Report(l)))
	}
	for _, v := range done.Rows {
		r.Rows = append(r.Rows, Expiry{v.Table, v.Removed, seconds(v.Lag)})
	}
	for _, cut := range found.Unfinished {
		r.Problems = append(r.Problems, audit.NotFinished(cut))
	}
	r.findProblems(done)
	return r
}

// findProblems says what an operator should look at.
func (r *ClaimsReport) findProblems(done retention.Report) {
	add := func(format string, args ...any) {
		r.Problems = append(r.Problems, operator.NewProblem(fmt.Sprintf(format, args...)))
	}
	for _, f := range r.Findings {
		r.Problems = append(r.Problems, f.Problem())
	}
	for _, f := range done.Floors {
		if f.Wrong {
			add("the floor of class %q of group %s stands still: %s", f.Class, f.Group, f.Why)
		}
	}
	for _, l := range done.Leaves {
		if l.Wrong {
			add("%s: %s", l.Name, l.Why)
		}
	}
	blocked, runs := done.Blocked, ", and that `outboxctl partitions maintain --side consumer` runs"
	switch {
	case !r.DryRun:
		runs = "" // this is it
		if blocked == "" {
			blocked = "this run could make no more"
		}
	case blocked == "":
		blocked = "run `outboxctl partitions maintain --side consumer`"
	}
	if done.Ahead < fewClaimDaysAhead {
		add("partitions reach only %s ahead; %s", label.Count(done.Ahead, "day"), blocked)
	}
	if done.Overdue > overdueAfter {
		add("a partition that no group needs is there since %s; see what it waits for%s", done.Overdue.Round(time.Hour), runs)
	}
	for _, v := range done.Rows {
		if v.Lag > overdueAfter {
			add("a row of %s expired %s ago and is there; see whether a session holds it, or its event can still be delivered%s", v.Table, v.Lag.Round(time.Hour), runs)
		}
	}
}

func seconds(d time.Duration) int64 { return int64(d / time.Second) }

// Wrong tells that there are problems.
func (r *ClaimsReport) Wrong() bool { return len(r.Problems) > 0 }
