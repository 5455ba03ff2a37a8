package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/audit"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/migrations"
)

// overdueAfter is for how long something may lie that could have been removed,
// before somebody should look.
const overdueAfter = 48 * time.Hour

// claimsReport is the JSON answer of both commands for the consumer's side.
type claimsReport struct {
	DryRun         bool            `json:"dry_run"`
	DaysAhead      int             `json:"days_ahead"`
	Made           []string        `json:"partitions_made"`
	Bytes          int64           `json:"bytes"`
	Blocked        string          `json:"blocked,omitempty"` // why those that are missing could not be made
	Growing        bool            `json:"growing"`           // claims were made of events of today or yesterday
	Horizon        *time.Time      `json:"horizon"`           // claims before it may be gone
	OverdueSeconds int64           `json:"overdue_seconds"`   // of the oldest partition that every floor has passed
	Floors         []floorReport   `json:"floors"`
	Leaves         []leafReport    `json:"partitions"`
	Rows           []expiryReport  `json:"rows"`
	Findings       []audit.Finding `json:"findings"`
	Problems       []string        `json:"problems"`
}

type floorReport struct {
	Group         string    `json:"group"`
	Class         string    `json:"class"`
	WindowSeconds int64     `json:"window_seconds"`
	Before        time.Time `json:"floor_before"`
	After         time.Time `json:"floor"`
	BehindSeconds int64     `json:"behind_seconds"` // behind the clock minus the window
	Retired       bool      `json:"retired"`
	Why           string    `json:"why,omitempty"`
}

type expiryReport struct {
	Table      string `json:"table"`
	Removed    int64  `json:"removed"`
	LagSeconds int64  `json:"lag_seconds"` // since the first of those that are left expired
}

func claimsStatus(c *cli.Context) error   { return claimsRound(c, true) }
func claimsMaintain(c *cli.Context) error { return claimsRound(c, c.Bool("dry-run")) }

func claimsRound(c *cli.Context, dryRun bool) error {
	if err := checkPartitionsCall(c); err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	done, failed := maintainClaims(c.Context, db, consumer.MaintainConfig{Ahead: c.Int("ahead"), DryRun: dryRun})
	if errors.Is(failed, consumer.ErrMaintained) {
		return fmt.Errorf("%w; it does what this command would do", failed)
	}
	failed = operator.ExplainConsumersMaintainer(operator.OthersThan(failed, consumer.ErrDefaultPartition)) // the finding says that one
	nothing := len(done.Leaves) == 0 || len(done.Floors) == 0 && operator.Denied(failed)
	if failed != nil && nothing {
		return failed
	}
	found, err := consumer.Audit(c.Context, db, consumer.AuditConfig{Catalog: true})
	if err = operator.OthersThan(err, consumer.ErrDefaultPartition); err != nil {
		return errors.Join(failed, operator.Explain(err, migrations.Consumer))
	}
	report := newClaimsReport(done, found, dryRun)
	if dryRun && errors.Is(failed, partition.ErrTaken) { // who only looks has not failed
		report.Problems, failed = append(report.Problems, failed.Error()), operator.OthersThan(failed, partition.ErrTaken)
	}
	if err := answer(c, report, printClaimPartitions); err != nil || failed != nil {
		return errors.Join(failed, err)
	}
	if len(report.Problems) > 0 {
		return errWrong
	}
	return nil
}

func maintainClaims(ctx context.Context, db *operator.Database, cfg consumer.MaintainConfig) (report consumer.MaintainReport, err error) {
	err = db.Direct(ctx, func(conn *pgx.Conn) (err error) {
		report, err = consumer.Maintain(ctx, conn, cfg)
		return err
	})
	return report, err
}

func newClaimsReport(done consumer.MaintainReport, found consumer.AuditReport, dryRun bool) *claimsReport {
	r := &claimsReport{
		DryRun: dryRun, DaysAhead: done.Ahead, Made: operator.NotNil(done.Made), Bytes: done.Bytes, Blocked: done.Blocked, Growing: done.Growing, OverdueSeconds: seconds(done.Overdue),
		Floors: []floorReport{}, Leaves: []leafReport{}, Rows: []expiryReport{}, Findings: audit.NewFindings(found), Problems: []string{},
	}
	if !done.Horizon.IsZero() {
		r.Horizon = &done.Horizon
	}
	for _, f := range done.Floors {
		r.Floors = append(r.Floors, floorReport{
			Group: f.Group, Class: f.Class, WindowSeconds: seconds(f.Window), Before: f.Before, After: f.After,
			BehindSeconds: seconds(f.Behind), Retired: f.Retired, Why: f.Why,
		})
	}
	for _, l := range done.Leaves {
		r.Leaves = append(r.Leaves, leafReport{Name: l.Name, From: l.From, To: l.To, State: string(l.State), Why: l.Why, Rows: l.Rows, Bytes: l.Bytes})
	}
	for _, v := range done.Rows {
		r.Rows = append(r.Rows, expiryReport{v.Table, v.Removed, seconds(v.Lag)})
	}
	for _, cut := range found.Unfinished {
		r.Problems = append(r.Problems, audit.NotFinished(cut))
	}
	r.findProblems(done)
	return r
}

// findProblems says what an operator should look at.
func (r *claimsReport) findProblems(done consumer.MaintainReport) {
	add := func(format string, args ...any) { r.Problems = append(r.Problems, fmt.Sprintf(format, args...)) }
	for _, f := range r.Findings {
		add("%s", f)
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
		add("partitions reach only %d days ahead; %s", done.Ahead, blocked)
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

func printClaimPartitions(p *page, r *claimsReport) {
	verb := "made"
	if r.DryRun {
		verb = "missing"
	}
	if n := len(r.Made); n > 0 {
		p.line("%s %d partitions: %s to %s", verb, n, r.Made[0], r.Made[n-1])
	}
	p.line("%d days ahead are covered; all partitions take %s", r.DaysAhead, terminal.Size(r.Bytes))
	if r.Blocked != "" {
		p.line("%s", r.Blocked)
	}
	if r.OverdueSeconds > 0 {
		p.line("a partition could have been dropped %s ago", time.Duration(r.OverdueSeconds)*time.Second)
	}
	var floors, rows [][]string
	for _, f := range r.Floors {
		why := f.Why
		if f.Retired {
			why = "retired"
		}
		floors = append(floors, []string{
			f.Group, f.Class, terminal.Length(time.Duration(f.WindowSeconds) * time.Second), f.Before.UTC().Format(time.DateOnly), f.After.UTC().Format(time.DateOnly), why,
		})
	}
	next := map[bool]string{true: "would be", false: "is now"}[r.DryRun]
	p.table([]string{"group", "class", "window", "floor was", next, "held back by"}, floors)
	printLeaves(p, r.Leaves)
	for _, v := range r.Rows {
		rows = append(rows, []string{v.Table, fmt.Sprint(v.Removed), (time.Duration(v.LagSeconds) * time.Second).String()})
	}
	p.table([]string{"expiring rows of", "removed", "lag"}, rows)
	printProblems(p, r.Problems)
}
