package consumer

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer/internal/memory"
	"github.com/onceward/onceward/consumer/internal/transaction"
	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/internal/pgconf"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/outbox"
)

// register makes the group's classes known to the database, and to retention.
// The lock keeps it apart from the raising of floors and from the decision to
// drop a partition: whichever comes second sees the first.
func (w *windows) register(ctx context.Context) error {
	err := pgx.BeginTxFunc(ctx, w.db, pgx.TxOptions{BeginQuery: pgconf.Begin}, func(tx pgx.Tx) error {
		q := consumerdb.New(tx)
		if err := q.LockWindows(ctx); err != nil {
			return err
		}
		rows, err := q.ClassesOfGroup(ctx, w.group)
		if err == nil {
			err = sameKeying(w.group, rows, w.classes)
		}
		if err != nil {
			return err
		}
		now, err := q.DatabaseTime(ctx)
		if err != nil {
			return err
		}
		oldest, err := oldestClaims(ctx, tx, q)
		if err != nil {
			return err
		}
		for _, c := range w.classes {
			row := w.registration(c, rows, now, oldest)
			if err := q.RegisterWindow(ctx, row); err != nil {
				return fmt.Errorf("class %q: %w", c.Pattern, err)
			}
		}
		return w.takeOver(ctx, q)
	})
	if err != nil {
		return fmt.Errorf("register the windows of group %q: %w", w.group, err)
	}
	return nil
}

// begin opens a transaction that is bounded as Config says; it begins with its first
// statement. Classes that were lost are registered again before.
func (w *windows) begin(ctx context.Context) (pgx.Tx, error) {
	if w.lost.CompareAndSwap(true, false) {
		if err := w.register(ctx); err != nil {
			w.lost.Store(true)
			return nil, unusable(err)
		}
	}
	tx, err := transaction.Begin(ctx, w.db, w.bounds)
	if err != nil {
		return nil, &infrastructureError{err}
	}
	return tx, nil
}

// registration is the row of a class. The floor of a new class is the start of the
// day one window ago, but no day whose claims may be gone; by arrival, today. The
// window of one that is there only grows, and by arrival not even that: its
// buckets would not grow with it.
func (w *windows) registration(c Class, rows []consumerdb.ClassesOfGroupRow, now,
	oldest time.Time) consumerdb.RegisterWindowParams {
	floor, window := now.Add(-c.Window), c.Window
	if c.Keyed == ByArrival {
		floor = now
	}
	if i := slices.IndexFunc(rows, func(r consumerdb.ClassesOfGroupRow) bool { return r.Class == c.Pattern }); i >= 0 {
		if stored := consumerdb.Micros(rows[i].WindowUs); c.Keyed == ByArrival || stored > window {
			window = stored
		}
	}
	return consumerdb.RegisterWindowParams{
		ConsumerGroup: w.group, Class: c.Pattern, TimeWindow: consumerdb.Interval(window),
		Floor: memory.Latest(partition.Day(floor), oldest),
		Late:  string(c.Late), Replay: string(c.Replay), Keyed: string(c.Keyed),
		Bucket: consumerdb.Interval(claims.BucketOf(string(c.Keyed), window)), Oldest: oldest,
	}
}

// takeOver takes over what is registered now, and says where that is not what
// the configuration says, and which classes an earlier configuration had: those
// hold partitions until somebody retires them.
func (w *windows) takeOver(ctx context.Context, q *consumerdb.Queries) error {
	rows, err := q.ClassesOfGroup(ctx, w.group)
	if err != nil {
		return err
	}
	// A reason in single quotes, which a log of text repeats as they are.
	known := &floors{of: make([]registered, len(w.classes)), readAt: time.Now()}
	for i := range rows {
		row := &rows[i]
		known.clock = time.Until(row.Clock)
		at := slices.IndexFunc(w.classes, func(c Class) bool { return c.Pattern == row.Class })
		if at < 0 {
			if row.RetiredAt == nil {
				w.log.WarnContext(ctx, "a class of the group is not in its configuration any more, and holds partitions back; "+
					"run the command when no program uses it", "class", row.Class, "floor", row.Floor,
					"command", fmt.Sprintf("outboxctl windows retire --class %s --reason '…' %s", terminal.Word(row.Class), terminal.Arguments(w.group)))
			}
			continue
		}
		known.of[at] = registeredOf(row)
		if flags := w.classes[at].differs(known.of[at]); flags != "" {
			w.log.WarnContext(ctx, "a class is registered otherwise than the configuration says, and what is registered counts; "+
				"run the command to change it, or change the configuration", "class", row.Class, "window", known.of[at].window.String(),
				"late", row.Late, "replay", row.Replay, "bucket", known.of[at].buckets.Length.String(),
				"command", fmt.Sprintf("outboxctl windows set %s --reason '…' %s", flags[1:], terminal.Arguments(w.group, row.Class)))
		}
	}
	w.known.Store(known)
	return nil
}

// differs returns the flags of `outboxctl windows set` that make what is
// registered what the class says; empty: it is. It is pure.
func (c Class) differs(r registered) (flags string) {
	if c.Window != r.window || !r.buckets.Changing(time.Now()) &&
		r.buckets.Length != claims.BucketOf(string(c.Keyed), c.Window) {
		flags += " --window " + c.Window.String()
	}
	if c.Late != r.late {
		flags += " --late " + string(c.Late)
	}
	if c.Replay != r.replay {
		flags += " --replay " + string(c.Replay)
	}
	return flags
}

// sameKeying refuses classes by which an event type would be claimed otherwise
// than by those that are registered: a claim of the one kind does not meet one of
// the other. It is pure.
func sameKeying(group string, rows []consumerdb.ClassesOfGroupRow, classes []Class) error {
	var stored []Class
	for _, r := range rows {
		if r.RetiredAt == nil || slices.ContainsFunc(classes, func(c Class) bool { return c.Pattern == r.Class }) {
			stored = append(stored, Class{Pattern: r.Class, Keyed: Keying(r.Keyed)})
		}
	}
	for _, c := range slices.Concat(classes, stored) {
		eventType := c.Pattern
		if prefix, ok := strings.CutSuffix(eventType, "*"); ok {
			eventType = prefix + "\x00" // in no pattern: what no more special class takes
		}
		was, is := ClassOf(stored, eventType), ClassOf(classes, eventType)
		if was < 0 || is < 0 || stored[was].Keyed == classes[is].Keyed {
			continue
		}
		err := fmt.Errorf("events of type %q are keyed by %s in the database and by %s in the configuration (by the classes %q and %q); a claim of the one does not meet one of the other: "+
			"keep what they are keyed by, or let another group handle them", c.Pattern, stored[was].Keyed, classes[is].Keyed, stored[was].Pattern, classes[is].Pattern)
		if !slices.ContainsFunc(classes, func(c Class) bool { return c.Pattern == stored[was].Pattern }) {
			err = fmt.Errorf("%w; when no copy of those of class %q can come any more: `outboxctl windows retire --class %s --reason \"…\" %s`", err, stored[was].Pattern,
				terminal.Word(stored[was].Pattern), terminal.Arguments(group))
		}
		return err
	}
	return nil
}

// oldestClaims returns the event time from which on no claim was ever dropped;
// zero when there is no partition.
func oldestClaims(ctx context.Context, tx pgx.Tx, q *consumerdb.Queries) (time.Time, error) {
	days, err := partition.List(ctx, tx, claims.Table)
	if err != nil {
		return time.Time{}, err
	}
	var oldest time.Time
	for i, day := range days {
		if from := outbox.IDTime(day.Lower); i == 0 || from.Before(oldest) {
			oldest = from
		}
	}
	horizon, err := claims.Horizon(ctx, q)
	return memory.Latest(oldest, horizon), err
}
