package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/migrations"
)

// adviceReport is the JSON answer of windows advise.
type adviceReport struct {
	Windows []adviceOfClass `json:"windows"`
}

type adviceOfClass struct {
	Group       string      `json:"group"`
	Class       string      `json:"class"`
	Window      string      `json:"window"`
	Seen        int64       `json:"duplicates_seen"`
	Oldest      string      `json:"oldest"` // age of the oldest, behind stream time
	EventType   string      `json:"oldest_type,omitempty"`
	TooSmall    bool        `json:"too_small"`
	Recommended string      `json:"recommended"`
	Ages        []ageReport `json:"ages"` // histogram
	// Copies from below the floor that are kept as letters; they may have been
	// replayed on purpose, and so do not count for the recommendation.
	Replays      int64  `json:"replays"`
	OldestReplay string `json:"oldest_replay,omitempty"`
}

// ageReport counts duplicates that were at most so old.
type ageReport struct {
	UpTo string `json:"up_to"`
	Seen int64  `json:"seen"`
}

func windowsAdvise(c *cli.Context) error {
	if err := checkOutput(c); err != nil {
		return err
	}
	if err := noArgument(c, "to name a group: --group"); err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	q, group := consumerdb.New(db), c.String("group")
	windows, err := q.ListWindows(c.Context, group)
	if err != nil {
		return fmt.Errorf("windows advise: %w", operator.Explain(err, migrations.Consumer))
	}
	seen, err := q.RedeliveriesOfGroups(c.Context, group)
	if err != nil {
		return fmt.Errorf("windows advise: %w", operator.Explain(err, migrations.Consumer))
	}
	replays, err := q.ReplayLetters(c.Context, group)
	if err != nil {
		return fmt.Errorf("windows advise: %w", operator.Explain(err, migrations.Consumer))
	}
	report := advise(windows, seen, replays)
	if err := answer(c, report, printAdvice); err != nil {
		return err
	}
	if slices.ContainsFunc(report.Windows, func(w adviceOfClass) bool { return w.TooSmall }) {
		return errWrong
	}
	return nil
}

// advise judges the classes in use, group by group. It is pure.
func advise(windows []consumerdb.ListWindowsRow, seen []consumerdb.RedeliveriesOfGroupsRow, replays []consumerdb.ReplayLettersRow) *adviceReport {
	report := &adviceReport{Windows: []adviceOfClass{}}
	var groups []string
	classes := make(map[string][]consumer.Class)
	for _, v := range windows {
		if v.RetiredAt != nil {
			continue
		}
		if classes[v.ConsumerGroup] == nil {
			groups = append(groups, v.ConsumerGroup)
		}
		classes[v.ConsumerGroup] = append(classes[v.ConsumerGroup], consumer.Class{Pattern: v.Class, Window: time.Duration(v.WindowMs) * time.Millisecond})
	}
	for _, group := range groups {
		var of []consumer.Redeliveries
		for _, v := range seen {
			if v.ConsumerGroup == group {
				of = append(of, consumer.Redeliveries{EventType: v.EventType, Seen: v.Seen, Oldest: time.Duration(v.OldestMs) * time.Millisecond})
			}
		}
		for i, a := range consumer.Advise(classes[group], of) {
			n, oldest := replaysOf(group, classes[group], i, replays)
			report.Windows = append(report.Windows, adviceOfClass{
				Group: group, Class: a.Pattern, Window: terminal.Length(a.Window), Seen: a.Seen, Oldest: terminal.Length(a.Oldest.Round(time.Second)), EventType: a.EventType,
				Replays: n, OldestReplay: oldest,
				TooSmall: a.TooSmall, Recommended: terminal.Length(a.Recommended), Ages: agesOf(group, classes[group], i, seen),
			})
		}
	}
	return report
}

// replaysOf counts the letters of one class, with the age of the oldest.
func replaysOf(group string, classes []consumer.Class, class int, replays []consumerdb.ReplayLettersRow) (n int64, oldest string) {
	var ms int64
	for _, v := range replays {
		if v.ConsumerGroup == group && consumer.ClassOf(classes, v.EventType) == class {
			n, ms = n+v.Letters, max(ms, v.OldestMs)
		}
	}
	if n == 0 {
		return 0, ""
	}
	return n, terminal.Length((time.Duration(ms) * time.Millisecond).Round(time.Second))
}

// agesOf sums the histogram over the event types of one class.
func agesOf(group string, classes []consumer.Class, class int, seen []consumerdb.RedeliveriesOfGroupsRow) []ageReport {
	counts := make(map[int16]int64)
	for _, v := range seen {
		if v.ConsumerGroup == group && consumer.ClassOf(classes, v.EventType) == class {
			counts[v.AgeLog2] += v.Seen
		}
	}
	out := []ageReport{}
	for _, n := range slices.Sorted(maps.Keys(counts)) {
		out = append(out, ageReport{UpTo: terminal.Length(time.Second << (n + 1)), Seen: counts[n]})
	}
	return out
}

func printAdvice(p *page, r *adviceReport) {
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
	p.table([]string{"group", "class", "window", "duplicates", "oldest", "of type", "window is", "ages up to"}, rows)
	for _, w := range r.Windows {
		if w.Replays > 0 {
			p.line("\n%s %s: %d copies came from below the floor and are kept as letters, the oldest %s late: `outboxctl dead list --side consumer --group %s --cause replay`; "+
				"where nobody replayed them, the window is too small", w.Group, w.Class, w.Replays, w.OldestReplay, terminal.Word(w.Group))
		}
		if w.TooSmall {
			p.line("\n! %s %s: a duplicate of %s came %s late, more than half the window of %s: make it %s: `outboxctl windows set --window %s --reason \"…\" %s`",
				w.Group, w.Class, w.EventType, w.Oldest, w.Window, w.Recommended, w.Recommended, terminal.Arguments(w.Group, w.Class))
		}
	}
}
