package retention

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/outbox"
)

// Bounds of one run. A batch is a statement and a transaction of its own, so that
// no delivery waits for it for long; what is left is for the next run.
const (
	expiryBatch = 1000
	maxBatches  = 1000
)

// RowsReport is what became of the rows of a table that expire one by one.
type RowsReport struct {
	Table   string // without its schema
	Removed int64
	// Lag is for how long the row that expired first is there all the same: locked,
	// of an event that can still be delivered, or left for the next run.
	Lag time.Duration
}

// expire removes rows that have expired: counters of failed tries, finished
// fences, and letters that were settled.
func (m *maintenance) expire(ctx context.Context) error {
	rows := []RowsReport{{Table: "attempts"}, {Table: "fences"}, {Table: "consumer_dead_letters"}}
	var errs []error
	if !m.cfg.DryRun {
		for i, remove := range []func(context.Context) (int64, error){m.expireAttempts, m.expireFences,
			m.expireLetters} {
			var err error
			rows[i].Removed, err = remove(ctx)
			if err != nil && !partition.TimedOut(err) {
				errs = append(errs, fmt.Errorf("remove rows of %s: %w", rows[i].Table, err))
			}
		}
	}
	first, err := m.q.OldestExpiries(ctx)
	if err != nil {
		return errors.Join(append(errs, fmt.Errorf("look for expired rows: %w", err))...)
	}
	for i, at := range []time.Time{first.Attempts, first.Fences, first.Letters} {
		rows[i].Lag = max(0, m.now.Sub(at))
	}
	m.report.Rows = rows
	return errors.Join(errs...)
}

func (m *maintenance) expireAttempts(ctx context.Context) (int64, error) {
	return batches(func() (int64, error) {
		return m.q.DeleteAttempts(ctx, consumerdb.DeleteAttemptsParams{At: m.now, RowLimit: expiryBatch})
	})
}

func (m *maintenance) expireLetters(ctx context.Context) (int64, error) {
	expired := consumerdb.DeleteLettersParams{At: &m.now, RowLimit: expiryBatch}
	for group, below := range lowestFloors(m.windows) {
		expired.ConsumerGroups, expired.Floors = append(expired.ConsumerGroups, group), append(expired.Floors, below)
	}
	return batches(func() (int64, error) { return m.q.DeleteLetters(ctx, expired) })
}

// expireFences goes group by group: a finished fence is kept while its event can
// still be claimed under its own id. A group without any window keeps all.
func (m *maintenance) expireFences(ctx context.Context) (int64, error) {
	var total int64
	for group, below := range lowestFloors(m.windows) {
		n, err := batches(func() (int64, error) {
			return m.q.DeleteFences(ctx, consumerdb.DeleteFencesParams{At: &m.now, ConsumerGroup: group, Below: below,
				RowLimit: expiryBatch})
		})
		total += n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// lowestFloors returns of each group the id below which no class of it claims. A
// group that is retired as a whole claims nothing. It is pure.
func lowestFloors(windows []consumerdb.WindowsRow) map[string]uuid.UUID {
	lowest := make(map[string]uuid.UUID)
	for _, w := range windows {
		below := uuid.Max
		if w.RetiredAt == nil {
			below = outbox.FirstID(w.Floor)
		}
		if other, ok := lowest[w.ConsumerGroup]; !ok || claims.Compare(below, other) < 0 {
			lowest[w.ConsumerGroup] = below
		}
	}
	return lowest
}

// batches repeats a deletion until it finds no full batch any more.
func batches(remove func() (int64, error)) (total int64, err error) {
	for range maxBatches {
		n, err := remove()
		total += n
		if err != nil || n < expiryBatch {
			return total, err
		}
	}
	return total, nil
}

// measure says how the table stands after the run.
func (m *maintenance) measure(ctx context.Context) error {
	var rest *partition.DefaultError
	existing, err := partition.List(ctx, m.conn, claims.Table)
	if err != nil && !errors.As(err, &rest) {
		return err
	}
	m.report.Ahead = partition.Ahead(existing, m.now)
	if m.report.Horizon, err = claims.Horizon(ctx, m.q); err != nil {
		return err
	}
	for _, l := range m.report.Leaves {
		if l.State != LeafDropped {
			m.report.Bytes += l.Bytes
		}
	}
	m.report.Overdue = overdue(m.windows, m.report.Leaves, m.now)
	if rest != nil { // the others count beside it
		return fmt.Errorf("%w; it is %s, and `outboxctl audit` prints how to take it away", consumer.ErrDefaultPartition, rest.Partition)
	}
	return nil
}

// overdue is how far the floors have passed the oldest leaf that is there all the
// same, and how long ago they were raised last; but for no longer than the group
// is retired that needed the leaf last, nor than each floor has gone with its group:
// a class that is new, and an operator, set one far above. It is pure.
func overdue(windows []consumerdb.WindowsRow, leaves []LeafReport, now time.Time) (longest time.Duration) {
	var lowest time.Time
	var settled, followed time.Duration
	for _, w := range windows {
		if w.RetiredAt != nil {
			continue
		}
		if lowest.IsZero() {
			settled, followed = consumerdb.Micros(w.SettledUs), consumerdb.Micros(w.FollowedUs)
		}
		settled, followed = min(settled, consumerdb.Micros(w.SettledUs)), min(followed, consumerdb.Micros(w.FollowedUs))
		if lowest.IsZero() || w.Floor.Before(lowest) {
			lowest = w.Floor
		}
	}
	for _, l := range leaves {
		if l.State == LeafDropped || lowest.Before(l.To) {
			continue
		}
		since := min(lowest.Sub(l.To)+settled, max(0, followed))
		for _, w := range windows {
			if w.RetiredAt != nil && w.Floor.Before(l.To) {
				since = min(since, max(0, now.Sub(*w.RetiredAt)))
			}
		}
		longest = max(longest, since)
	}
	return longest
}
