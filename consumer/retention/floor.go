package retention

import (
	"context"
	"fmt"
	"time"

	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/internal/terminal"
)

// maxRaise is by how much one run may raise a floor, so that neither a clock that
// jumps nor one event with a wrong time can drop everything at once.
const maxRaise = 48 * time.Hour

// standsStill is for how long a floor may lie behind the clock, without having
// been raised, before somebody should look.
const standsStill = 48 * time.Hour

// FloorReport is what became of the floor of one class.
type FloorReport struct {
	Group, Class  string
	Window        time.Duration
	Before, After time.Time     // with DryRun, After is where it would be raised to
	Behind        time.Duration // by how much After lies behind the clock minus the window
	Retired       bool          // it is not raised and holds nothing back
	Why           string        // what holds it back; empty: nothing to say
	Wrong         bool          // it stands still while the table grows: Why says what an operator looks at

	settled time.Duration // since it was raised last
}

// raised returns where a floor may be raised to. It is pure.
//
// The invariants: it is never lowered, never raised beyond stream time or the
// clock minus the window, nor by more than maxRaise; and it lies at the start of
// a UTC day, as partitions do, unless it was never raised. A group without a
// stream time has finished nothing that anybody knows of.
func raised(floor time.Time, window time.Duration, stream *time.Time, now time.Time) time.Time {
	if stream == nil {
		return floor
	}
	to := now
	if stream.Before(to) {
		to = *stream
	}
	to = to.Add(-window)
	if limit := floor.Add(maxRaise); to.After(limit) {
		to = limit
	}
	if to = partition.Day(to); to.After(floor) {
		return to
	}
	return floor
}

// raiseFloors raises those of all classes, in one transaction.
func (m *maintenance) raiseFloors(ctx context.Context) error {
	var found []FloorReport
	err := m.locked(ctx, func(q *consumerdb.Queries) (err error) {
		if found, err = m.floorReports(ctx, q); err != nil || m.cfg.DryRun {
			return err
		}
		for _, f := range found {
			if !f.After.After(f.Before) {
				continue
			}
			if _, err := q.RaiseFloor(ctx, consumerdb.RaiseFloorParams{Floor: f.After, ConsumerGroup: f.Group,
				Class: f.Class}); err != nil {
				return err
			}
		}
		return nil
	})
	if partition.TimedOut(err) {
		if found, err = m.floorReports(ctx, m.q); err == nil {
			for i := range found {
				found[i].After, found[i].Why = found[i].Before, "not raised by this run: another session changes windows"
			}
		}
	}
	if err != nil {
		return fmt.Errorf("raise floors: %w", err)
	}
	m.report.Floors = found
	m.cfg.crash("floors")
	return nil
}

// floorReports says of every class where its floor may be raised to, and why not
// further.
func (m *maintenance) floorReports(ctx context.Context, q *consumerdb.Queries) ([]FloorReport, error) {
	windows, err := q.Windows(ctx)
	if err != nil {
		return nil, err
	}
	marks, err := q.SlowestMarks(ctx)
	if err != nil {
		return nil, err
	}
	slowest := make(map[string]*consumerdb.SlowestMarksRow)
	for i := range marks {
		slowest[marks[i].ConsumerGroup] = &marks[i]
	}
	m.windows = windows
	var out []FloorReport
	for _, w := range windows {
		out = append(out, floorReport(w, slowest[w.ConsumerGroup], m.now))
	}
	return out, nil
}

const oneRun = "one run raises it by two days at most"

// floorReport is pure.
func floorReport(w consumerdb.WindowsRow, slowest *consumerdb.SlowestMarksRow, now time.Time) FloorReport {
	r := FloorReport{
		Group: w.ConsumerGroup, Class: w.Class, Window: windowOf(w), Before: w.Floor, After: w.Floor,
		Retired: w.RetiredAt != nil, settled: consumerdb.Micros(w.SettledUs),
	}
	if r.Retired {
		return r
	}
	var stream *time.Time
	if slowest != nil {
		stream = slowest.FinishedTime
	}
	behind := behindClock(w, now)
	if w.Keyed == claims.ByArrival {
		stream = &now
	}
	r.After = raised(w.Floor, behind, stream, now)
	r.Behind = max(0, partition.Day(now.Add(-behind)).Sub(r.After))
	switch {
	case r.Behind == 0:
	case stream == &now:
		r.Why = oneRun
	case slowest == nil:
		r.Why = "the group has saved no progress yet"
	case stream == nil:
		r.Why = fmt.Sprintf("the group has finished nothing of %s, which it saved last %s", place(slowest), rfc(slowest.UpdatedAt))
	case raised(w.Floor, behind, &now, now).After(r.After):
		r.Why = fmt.Sprintf("the group has finished %s up to events of %s only, and saved it last %s", place(slowest), rfc(*stream), rfc(slowest.UpdatedAt))
	default:
		r.Why = oneRun
	}
	return r
}

// place names what a row of progress is about.
func place(row *consumerdb.SlowestMarksRow) string {
	if row.Topic == "" {
		return "what it receives from no topic"
	}
	return fmt.Sprintf("partition %d of topic %s", row.KafkaPartition, row.Topic)
}

// alarm marks the floors that stand still while the table grows.
func (m *maintenance) alarm() {
	for i := range m.report.Floors {
		f := &m.report.Floors[i]
		still := f.After.Equal(f.Before) && f.Behind > standsStill && f.settled > standsStill
		if !still || f.Retired || !m.report.Growing {
			continue
		}
		f.Wrong = true
		f.Why += fmt.Sprintf("; the table grows meanwhile: start the group, look for what holds its consumer, or, when it is gone for good, run "+
			"`outboxctl windows retire --reason \"…\" %s`; when it only does not read a topic any more, add --topic TOPIC", terminal.Arguments(f.Group))
	}
}

func rfc(t time.Time) string { return t.UTC().Format(time.RFC3339) }
