package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/consumer/retention"
	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator/partitions"
	"github.com/onceward/onceward/internal/terminal"
)

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
	report, failed := partitions.RoundOfClaims(c.Context, db, retention.Config{Ahead: c.Int("ahead"), DryRun: dryRun})
	if report == nil {
		return failed
	}
	if failed != nil {
		return errors.Join(failed, write(c, report, printClaimPartitions))
	}
	return answer(c, report, printClaimPartitions)
}

func printClaimPartitions(p *page, r *partitions.ClaimsReport) {
	verb := "made"
	if r.DryRun {
		verb = "missing"
	}
	if n := len(r.Made); n > 0 {
		p.line("%s %s: %s to %s", verb, label.Count(n, "partition"), r.Made[0], r.Made[n-1])
	}
	p.line("%s covered; all partitions take %s", label.Count(r.DaysAhead, "day ahead is", "days ahead are"), terminal.Size(r.Bytes))
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
			f.Group, f.Class, terminal.Length(time.Duration(f.WindowSeconds) * time.Second),
			f.Before.UTC().Format(time.DateOnly), f.After.UTC().Format(time.DateOnly), why,
		})
	}
	next := map[bool]string{true: "would be", false: "is now"}[r.DryRun]
	p.table([]string{"group", "class", "window", "floor was?", next, "held back by…"}, floors)
	printLeaves(p, r.Leaves)
	for _, v := range r.Rows {
		rows = append(rows, []string{v.Table, fmt.Sprint(v.Removed),
			(time.Duration(v.LagSeconds) * time.Second).String()})
	}
	p.table([]string{"expiring rows of", "removed", "lag"}, rows)
	printProblems(p, r.Problems)
}
