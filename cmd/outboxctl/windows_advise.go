package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/windows"
	"github.com/onceward/onceward/internal/terminal"
)

func windowsAdvise(c *cli.Context) error {
	if err := checkOutput(c); err != nil {
		return err
	}
	if err := noArgument(c, "to name a group: --group"); err != nil {
		return err
	}
	return ask(c, func(db *operator.Database) (*windows.Advice, error) {
		report, err := windows.Advise(c.Context, db, c.String("group"))
		return report, prefixed("windows advise", err)
	}, printAdvice)
}

func printAdvice(p *page, r *windows.Advice) {
	if len(r.Windows) == 0 {
		p.line("no group has registered a window")
	}
	var rows [][]string
	for _, w := range r.Windows {
		verdict := "enough"
		switch {
		case w.TooSmall:
			verdict = "too small"
		case w.Seen == 0:
			verdict = "no duplicate seen yet"
		}
		var ages []string
		for _, a := range w.Ages {
			ages = append(ages, fmt.Sprintf("%s: %d", a.UpTo, a.Seen))
		}
		rows = append(rows, []string{w.Group, w.Class, w.Window, strconv.FormatInt(w.Seen, 10), w.Oldest, orDash(w.EventType), verdict, strings.Join(ages, ", ")})
	}
	p.table([]string{"group", "class", "window", "duplicates?", "oldest?", "of type??", "window is", "ages up to…"}, rows)
	for _, w := range r.Windows {
		if w.Replays > 0 {
			came := label.Count(w.Replays, "copy came from below the floor and is kept as a letter",
				"copies came from below the floor and are kept as letters")
			p.line("\n%s %s: %s, the oldest %s late: `outboxctl dead list --side consumer --group %s --cause replay`; "+
				"where nobody replayed them, the window is too small", w.Group, w.Class, came, w.OldestReplay, terminal.Word(w.Group))
		}
		if w.TooSmall {
			p.line("\n! %s %s: a duplicate of %s came %s late, more than half the window of %s: make it %s: `outboxctl windows set --window %s --reason \"…\" %s`",
				w.Group, w.Class, w.EventType, w.Oldest, w.Window, w.Recommended, w.Recommended,
				terminal.Arguments(w.Group, w.Class))
		}
	}
}
