package windows

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/retention"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/migrations"
)

// Advice is the JSON answer of windows advise.
type Advice struct {
	Windows []ClassAdvice `json:"windows"`
}

// ClassAdvice is what the duplicates say of one class.
type ClassAdvice struct {
	Group       string `json:"group"`
	Class       string `json:"class"`
	Window      string `json:"window"`
	Seen        int64  `json:"duplicates_seen"`
	Oldest      string `json:"oldest"` // age of the oldest, behind stream time
	EventType   string `json:"oldest_type,omitempty"`
	TooSmall    bool   `json:"too_small"`
	Recommended string `json:"recommended"`
	Ages        []Age  `json:"ages"` // histogram
	// Copies from below the floor that are kept as letters; they may have been
	// replayed on purpose, and so do not count for the recommendation.
	Replays      int64  `json:"replays"`
	OldestReplay string `json:"oldest_replay,omitempty"`
}

// Age counts duplicates that were at most so old.
type Age struct {
	UpTo string `json:"up_to"`
	Seen int64  `json:"seen"`
}

// Advise compares the windows with the age of the duplicates that were seen.
func Advise(ctx context.Context, db *operator.Database, group string) (*Advice, error) {
	q := consumerdb.New(db)
	windows, err := q.ListWindows(ctx, group)
	if err != nil {
		return nil, operator.Explain(err, migrations.Consumer)
	}
	seen, err := q.RedeliveriesOfGroups(ctx, group)
	if err != nil {
		return nil, operator.Explain(err, migrations.Consumer)
	}
	replays, err := q.ReplayLetters(ctx, group)
	if err != nil {
		return nil, operator.Explain(err, migrations.Consumer)
	}
	return adviseOn(windows, seen, replays), nil
}

// Wrong tells that a window is too small.
func (r *Advice) Wrong() bool {
	return slices.ContainsFunc(r.Windows, func(w ClassAdvice) bool { return w.TooSmall })
}

// adviseOn judges the classes in use, group by group. It is pure.
func adviseOn(windows []consumerdb.ListWindowsRow, seen []consumerdb.RedeliveriesOfGroupsRow,
	replays []consumerdb.ReplayLettersRow) *Advice {
	report := &Advice{Windows: []ClassAdvice{}}
	var groups []string
	classes := make(map[string][]consumer.Class)
	for _, v := range windows {
		if v.RetiredAt != nil {
			continue
		}
		if classes[v.ConsumerGroup] == nil {
			groups = append(groups, v.ConsumerGroup)
		}
		classes[v.ConsumerGroup] = append(classes[v.ConsumerGroup],
			consumer.Class{Pattern: v.Class, Window: time.Duration(v.WindowMs) * time.Millisecond})
	}
	for _, group := range groups {
		var of []retention.Redeliveries
		for _, v := range seen {
			if v.ConsumerGroup == group {
				of = append(of, retention.Redeliveries{EventType: v.EventType, Seen: v.Seen,
					Oldest: time.Duration(v.OldestMs) * time.Millisecond})
			}
		}
		for i, a := range retention.Advise(classes[group], of) {
			n, oldest := replaysOf(group, classes[group], i, replays)
			report.Windows = append(report.Windows, ClassAdvice{
				Group: group, Class: a.Pattern, Window: terminal.Length(a.Window), Seen: a.Seen,
				Oldest: terminal.Length(a.Oldest.Round(time.Second)), EventType: a.EventType,
				Replays: n, OldestReplay: oldest,
				TooSmall: a.TooSmall, Recommended: terminal.Length(a.Recommended),
				Ages: agesOf(group, classes[group], i, seen),
			})
		}
	}
	return report
}

// replaysOf counts the letters of one class, with the age of the oldest.
func replaysOf(group string, classes []consumer.Class, class int, replays []consumerdb.ReplayLettersRow) (n int64,
	oldest string) {
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
func agesOf(group string, classes []consumer.Class, class int, seen []consumerdb.RedeliveriesOfGroupsRow) []Age {
	counts := make(map[int16]int64)
	for _, v := range seen {
		if v.ConsumerGroup == group && consumer.ClassOf(classes, v.EventType) == class {
			counts[v.AgeLog2] += v.Seen
		}
	}
	out := []Age{}
	for _, n := range slices.Sorted(maps.Keys(counts)) {
		out = append(out, Age{UpTo: terminal.Length(time.Second << (n + 1)), Seen: counts[n]})
	}
	return out
}
