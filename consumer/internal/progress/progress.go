package progress

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/consumer/internal/memory"
	"github.com/onceward/onceward/internal/consumerdb"
)

// ErrHistory: the database is on another history than it was, or a mark is gone from it
// or lower than it was.
var ErrHistory = errors.New("the database is on another history (a restart, failover, restore or another cluster)")

// errMarkGone is what a save finds that demands too much.
var errMarkGone = fmt.Errorf("%w: a mark in onceward.progress is gone, or lower than it was", ErrHistory)

const (
	// AnyMark is, as what a mark must at least be, that it need not be there.
	AnyMark = -2
	// OpenCrashed is, as who has a partition, that nobody has, and that there are doubts.
	OpenCrashed = "crashed"
)

// SameHistory is [ErrHistory] when the database is on another one.
func SameHistory(ctx context.Context, q *consumerdb.Queries, history string) error {
	now, err := q.History(ctx)
	if err == nil && now.History != history {
		err = fmt.Errorf("%w: was %s, is %s", ErrHistory, history, now.History)
	}
	return err
}

// Save writes marks and what was counted of duplicates, in one transaction: all of it, or,
// on another history or where a mark is gone or lower than is demanded, nothing.
func Save(ctx context.Context, q *consumerdb.Queries, history string, row consumerdb.SaveProgressParams,
	counted map[memory.AgeClass]memory.AgeCount) error {
	if err := SameHistory(ctx, q, history); err != nil {
		return err
	}
	if err := saveAges(ctx, q, row.ConsumerGroup, counted); err != nil {
		return err
	}
	if row.OpenBy != "" {
		if err := beginWith(ctx, q, row); err != nil {
			return err
		}
	}
	if n, err := q.SaveProgress(ctx, row); err != nil || n != int64(len(row.Topics)) {
		return cmp.Or(err, errMarkGone)
	}
	return q.ForgetAhead(ctx, consumerdb.ForgetAheadParams{
		ConsumerGroup: row.ConsumerGroup, Topics: row.Topics, TopicIds: row.TopicIds,
		KafkaPartitions: row.KafkaPartitions, HighOffsets: row.HighOffsets,
	})
}

// beginWith makes the marks of a session those that count for their partitions.
func beginWith(ctx context.Context, q *consumerdb.Queries, row consumerdb.SaveProgressParams) error {
	adopt := consumerdb.AdoptProgressParams{ConsumerGroup: row.ConsumerGroup, Topics: row.Topics,
		TopicIds: row.TopicIds, KafkaPartitions: row.KafkaPartitions}
	if err := q.AdoptProgress(ctx, adopt); err != nil {
		return err
	}
	return q.RetireOtherTopics(ctx, consumerdb.RetireOtherTopicsParams(adopt))
}

// saveAges writes what was counted of duplicates.
func saveAges(ctx context.Context, q *consumerdb.Queries, group string, of map[memory.AgeClass]memory.AgeCount) error {
	if len(of) == 0 {
		return nil
	}
	row := consumerdb.RecordRedeliveriesParams{ConsumerGroup: group}
	for class, n := range of {
		row.EventTypes, row.AgesLog2 = append(row.EventTypes, class.EventType), append(row.AgesLog2, class.Log2)
		row.Seen, row.Oldest = append(row.Seen, n.Seen), append(row.Oldest, consumerdb.Interval(n.Oldest))
	}
	return q.RecordRedeliveries(ctx, row)
}

// Read reads the history and the marks of a group over one connection: while the database fails over, two
// may lead to two databases.
func Read(ctx context.Context, db *pgxpool.Pool, group string) (now consumerdb.HistoryRow,
	rows []consumerdb.ProgressOfGroupRow, err error) {
	conn, err := db.Acquire(ctx)
	if err != nil {
		return now, nil, err
	}
	defer conn.Release()
	q := consumerdb.New(conn)
	if now, err = q.History(ctx); err != nil {
		return now, nil, fmt.Errorf("read the database's history: %w", err)
	}
	rows, err = q.ProgressOfGroup(ctx, group)
	return now, rows, err
}
