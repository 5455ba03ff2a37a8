package main

import (
	"time"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/windows"
	"github.com/onceward/onceward/internal/terminal"
)

func windowsList(c *cli.Context) error {
	if err := checkOutput(c); err != nil {
		return err
	}
	if err := noArgument(c, "to name a group: --group"); err != nil {
		return err
	}
	return ask(c, func(db *operator.Database) (*windows.Report, error) {
		report, err := windows.List(c.Context, db, c.String("group"))
		return report, prefixed("windows list", err)
	}, printWindows)
}

func printWindows(p *page, r *windows.Report) {
	if len(r.Windows) == 0 {
		p.line("none")
	}
	var rows [][]string
	for _, w := range r.Windows {
		policies := w.Late + ", " + w.Replay
		if w.Keyed == string(consumer.ByArrival) {
			policies = "keyed by arrival"
		}
		state := "behind " + w.Behind
		switch {
		case w.Retired != nil:
			state = "retired"
		case w.Wrong:
			state = "stands still"
		case w.Behind == "0s":
			state = "up to date"
		}
		rows = append(rows, []string{w.Group, w.Class, w.Window, policies, w.Floor.Format(time.DateOnly + " 15:04Z"), state, terminal.Stamp(w.StreamTime), orDash(w.Slowest)})
	}
	p.table([]string{"group", "class", "window", "late, replay?", "floor", "state", "stream time??", "of??"}, rows)
	if r.OldestPartition != nil {
		p.line("\nthe oldest partition is that of %s", r.OldestPartition.UTC().Format(time.DateOnly))
	}
	for _, w := range r.Windows {
		mark := ""
		if w.Wrong {
			mark = "! "
		}
		if w.Why != "" {
			p.line("%s%s %s: %s", mark, w.Group, w.Class, w.Why)
		}
	}
	printProblems(p, r.Problems)
}
