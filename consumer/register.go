package consumer

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/internal/pinned"
	"github.com/onceward/onceward/outbox"
)

// register makes the group's classes known to the database, and to retention.
// The lock keeps it apart from the raising of floors and from the decision to
// drop a partition: whichever comes second sees the first.
func (p *Processor) register(ctx context.Context) error {
	err := pgx.BeginTxFunc(ctx, p.db, pgx.TxOptions{BeginQuery: pinned.Begin}, func(tx pgx.Tx) error {
		q := consumerdb.New(tx)
		if err := q.LockWindows(ctx); err != nil {
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
		known := &floors{clock: time.Until(now), readAt: time.Now()}
		for _, c := range p.windows.classes {
			floor, err := p.registerClass(ctx, q, c, now, oldest)
			if err != nil {
				return fmt.Errorf("class %q: %w", c.Pattern, err)
			}
			known.of = append(known.of, floor)
		}
		p.windows.known.Store(known)
		return p.warnOfOthers(ctx, q)
	})
	if err != nil {
		return fmt.Errorf("register the windows of group %q: %w", p.group, err)
	}
	return nil
}

// registerClass returns the floor. That of a new class is the start of the day
// one window ago, but no day whose claims may be gone.
func (p *Processor) registerClass(ctx context.Context, q *consumerdb.Queries, c Class, now, oldest time.Time) (time.Time, error) {
	floor := partition.Day(now.Add(-c.Window))
	if oldest.After(floor) {
		floor = oldest
	}
	row, err := q.RegisterWindow(ctx, consumerdb.RegisterWindowParams{
		ConsumerGroup: p.group, Class: c.Pattern, TimeWindow: interval(c.Window), Floor: floor,
		Late: string(c.Late), Replay: string(c.Replay), Keyed: string(c.Keyed), Oldest: oldest,
	})
	if err != nil {
		return time.Time{}, err
	}
	if row.Keyed != string(c.Keyed) {
		return time.Time{}, fmt.Errorf("it is keyed by %s in the database and by %s in the configuration; a claim of the one does not meet one of the other: "+
			"keep it, or give the class another pattern", row.Keyed, c.Keyed)
	}
	return row.Floor, nil
}

// oldestClaims returns the event time from which on no claim was ever dropped;
// zero when there is no partition.
func oldestClaims(ctx context.Context, tx pgx.Tx, q *consumerdb.Queries) (time.Time, error) {
	days, err := partition.List(ctx, tx, "onceward."+processedTable)
	if err != nil {
		return time.Time{}, err
	}
	var oldest time.Time
	for i, day := range days {
		if from := outbox.IDTime(day.Lower); i == 0 || from.Before(oldest) {
			oldest = from
		}
	}
	horizon, err := readHorizon(ctx, q)
	return latest(oldest, horizon), err
}

// warnOfOthers names classes that an earlier configuration had: they hold
// partitions until somebody retires them.
func (p *Processor) warnOfOthers(ctx context.Context, q *consumerdb.Queries) error {
	rows, err := q.FloorsOfGroup(ctx, p.group)
	if err != nil {
		return err
	}
	for _, row := range rows {
		known := slices.ContainsFunc(p.windows.classes, func(c Class) bool { return c.Pattern == row.Class })
		if !known && row.RetiredAt == nil {
			p.log.WarnContext(ctx, "a class of the group is not in its configuration any more, and holds partitions back; "+
				"when no program uses it, run `outboxctl windows retire`", "class", row.Class, "floor", row.Floor)
		}
	}
	return nil
}
