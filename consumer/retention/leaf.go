package retention

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/internal/terminal"
)

// LeafState is how far retention has got with one partition of processed_events.
type LeafState = partition.State

// States of a leaf.
const (
	LeafOpen      = partition.Open      // some class still needs it
	LeafWaiting   = partition.Waiting   // every floor has passed it, and something in it is not settled
	LeafClosed    = partition.Closed    // nothing needs it; it may be dropped
	LeafDetaching = partition.Detaching // leaving the table, waits for older transactions
	LeafDropped   = partition.Dropped   // gone
)

// LeafReport is what became of one leaf.
type LeafReport struct {
	Name     string    // without its schema
	From, To time.Time // its event times, To excluded
	State    LeafState
	Why      string // what it waits for, or would be done; empty: nothing to say
	Wrong    bool   // it will not mend itself: Why says what an operator does
	Rows     int64  // at the last ANALYZE; -1: there was none
	Bytes    int64  // on disk, with indexes
}

// goThroughLeaves takes each leaf as far as it may go now.
func (m *maintenance) goThroughLeaves(ctx context.Context) error {
	var err error
	if m.windows, err = m.q.Windows(ctx); err != nil {
		return fmt.Errorf("read windows: %w", err)
	}
	horizon, err := claims.Horizon(ctx, m.q)
	if err != nil {
		return err
	}
	leaves, err := partition.Leaves(ctx, m.conn, claims.Table)
	var rest *partition.DefaultError
	switch {
	case errors.As(err, &rest):
		m.rest = rest.Partition // measure tells it
	case err != nil:
		return err
	}
	var errs []error
	for i := range leaves {
		l := &leaves[i]
		if l.Pending {
			m.exit.Pending = l.Name
		}
		m.report.Growing = m.report.Growing || l.Heap > 0 && l.To().After(m.now.AddDate(0, 0, -1))
		step, err := m.advance(ctx, l, horizon)
		if err != nil {
			errs = append(errs, fmt.Errorf("partition %s: %w", l.Name, err))
		}
		m.report.Leaves = append(m.report.Leaves, LeafReport(step))
	}
	m.alarm()
	return errors.Join(errs...)
}

// advance takes a leaf as far as it may go now. One that is detached, or about to
// be, was decided about by an earlier run, which raised the horizon, or by
// somebody who should not have.
func (m *maintenance) advance(ctx context.Context, l *partition.Leaf, horizon time.Time) (partition.Report, error) {
	leaving := l.Pending || !l.Attached
	switch {
	case leaving && needed(m.windows, l.To()):
		return l.Report(LeafDetaching, "%s, although its claims are needed: %s", detached(l), m.reattach(l)).ToMend(), nil
	case !leaving || l.To().After(horizon):
		if report, err := m.decide(ctx, l); report != nil {
			return *report, err
		}
	}
	if m.cfg.DryRun {
		return l.Report(LeafDetaching, "decided; the next run goes on with it"), nil
	}
	return m.remove(ctx, l)
}

// detached says of a leaf that retention has not given up what became of it.
func detached(l *partition.Leaf) string {
	if l.Pending {
		return "somebody began to detach it"
	}
	return "somebody detached it"
}

// reattach says how to bring a leaf back. Beside a DEFAULT partition it cannot come
// alone, because that may have claims of its day.
func (m *maintenance) reattach(l *partition.Leaf) string {
	if m.rest != "" {
		return "`outboxctl audit` prints how to bring it back, with the claims of its day that the DEFAULT partition took"
	}
	return l.AttachAgain(claims.Table)
}

// needed reports whether some class may claim events from before an instant. It
// is pure.
func needed(windows []consumerdb.WindowsRow, end time.Time) bool {
	return slices.ContainsFunc(windows, func(w consumerdb.WindowsRow) bool {
		return w.RetiredAt == nil &&
			w.Floor.Before(end)
	})
}

// decide asks whether a leaf may go and, if so, raises the horizon, in one
// transaction that keeps registration out. A report is returned if it may not,
// and with every error.
func (m *maintenance) decide(ctx context.Context, l *partition.Leaf) (*partition.Report, error) {
	if report, err := m.mayGo(ctx, m.q, l); report != nil || err != nil {
		return report, err // without the lock, which nearly every leaf is spared
	}
	if m.rest != "" && l.Attached {
		r := m.stays(l)
		return &r, nil
	}
	if m.cfg.DryRun {
		r := l.Report(LeafClosed, "every floor has passed it; would be dropped")
		return &r, nil
	}
	var report *partition.Report
	err := m.locked(ctx, func(q *consumerdb.Queries) (err error) {
		if m.windows, err = q.Windows(ctx); err != nil {
			return err
		}
		if report, err = m.mayGo(ctx, q, l); report != nil || err != nil {
			return err
		}
		return giveAway(ctx, q, l)
	})
	if partition.TimedOut(err) {
		r := l.Report(LeafClosed, "another session changes windows")
		return &r, nil
	}
	if err != nil {
		r := l.Report(LeafClosed, "not decided")
		return &r, fmt.Errorf("raise the horizon: %w", err)
	}
	m.cfg.crash("horizon")
	return report, nil
}

// giveAway decides that a leaf goes. What it alone says of letters is written into
// them.
func giveAway(ctx context.Context, q *consumerdb.Queries, l *partition.Leaf) error {
	if err := q.SettleApplied(ctx, consumerdb.SettleAppliedParams{Keep: consumerdb.Interval(consumerdb.LettersKept),
		Lower: l.Lower, Upper: l.Upper}); err != nil {
		return fmt.Errorf("settle the letters of events that were applied: %w", err)
	}
	return q.RaiseHorizon(ctx, l.To())
}

// stays says of a leaf that nothing needs that it is not detached beside a DEFAULT
// partition, which PostgreSQL does not do without holding inserts back.
func (m *maintenance) stays(l *partition.Leaf) partition.Report {
	return l.Report(LeafClosed, "every floor has passed it; it stays while there is the DEFAULT partition %s", m.rest)
}

// mayGo returns a report that says why not, or nil.
func (m *maintenance) mayGo(ctx context.Context, q *consumerdb.Queries, l *partition.Leaf) (*partition.Report, error) {
	if l.To().After(m.now) {
		r := l.Report(LeafOpen, "") // whatever the floors say
		return &r, nil
	}
	if why := neededBy(m.windows, l.To(), m.cfg.settle); why != "" {
		if l.To().After(partition.Day(m.now.Add(-m.longest()))) {
			why = "" // no floor is expected to have passed it
		}
		r := l.Report(LeafOpen, "%s", why)
		return &r, nil
	}
	unknown, err := q.UnregisteredGroups(ctx)
	if err != nil {
		r := l.Report(LeafOpen, "")
		return &r, fmt.Errorf("look for groups without a window: %w", err)
	}
	if len(unknown) > 0 {
		r := l.Report(LeafOpen, "group %s makes progress and has registered no window, so that nobody knows what it needs: start it with this release or, when it is gone, "+
			"say so with `outboxctl windows retire --reason \"…\" %s`", unknown[0], terminal.Arguments(unknown[0])).ToMend()
		return &r, nil
	}
	reasons, err := unsettled(ctx, q, l)
	if err != nil || len(reasons) > 0 {
		r := l.Report(LeafWaiting, "%s", strings.Join(reasons, "; "))
		return &r, err
	}
	return nil, nil //nolint:nilnil // nothing is against it
}

// neededBy says which class needs claims from before an instant; empty: none. It
// is pure.
func neededBy(windows []consumerdb.WindowsRow, end time.Time, settle time.Duration) string {
	var lowest, newest *consumerdb.WindowsRow
	below := 0
	for i := range windows {
		w := &windows[i]
		if w.RetiredAt != nil {
			continue
		}
		if w.Floor.Before(end) {
			below++
		}
		if lowest == nil || w.Floor.Before(lowest.Floor) {
			lowest = w
		}
		if newest == nil || w.SettledUs < newest.SettledUs {
			newest = w
		}
	}
	switch {
	case lowest == nil:
		return "no group has a window that is in use"
	case below > 1:
		return fmt.Sprintf("%d classes need it, first of all %q of group %s, whose floor is %s", below, lowest.Class, lowest.ConsumerGroup, rfc(lowest.Floor))
	case below == 1:
		return fmt.Sprintf("class %q of group %s needs it; its floor is %s", lowest.Class, lowest.ConsumerGroup, rfc(lowest.Floor))
	case time.Duration(newest.SettledUs)*time.Microsecond < settle:
		return fmt.Sprintf("the floor of class %q of group %s was raised just now; processes have %s to see it", newest.Class, newest.ConsumerGroup, settle)
	}
	return ""
}

// unsettled says what of a leaf's events is not settled. Letters are none of it: a
// letter says itself that its event was given up, which a redelivery finds.
func unsettled(ctx context.Context, q *consumerdb.Queries, l *partition.Leaf) ([]string, error) {
	open, err := q.OpenEvents(ctx, consumerdb.OpenEventsParams{Lower: l.Lower, Upper: l.Upper})
	if err != nil {
		return nil, fmt.Errorf("count open events: %w", err)
	}
	var reasons []string
	if open > 0 {
		reasons = append(reasons, label.Count(open, "of its events is open", "of its events are open")+", with effects that nothing has ended: see `outboxctl fences list --all`")
	}
	return reasons, nil
}

// remove detaches and drops a leaf that nothing needs. Fences are asked once more
// before the drop: until the detach, somebody may have claimed by a floor that was
// read before it was raised.
func (m *maintenance) remove(ctx context.Context, l *partition.Leaf) (partition.Report, error) {
	if l.Attached && m.rest != "" && !l.Pending {
		return m.stays(l), nil
	}
	return m.exit.Leave(ctx, l, partition.Gate{Holds: "nothing needs it", Drop: func(ctx context.Context, tx pgx.Tx) ([]string, error) {
		return unsettled(ctx, consumerdb.New(tx), l)
	}})
}
