package claims

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/partition"
)

// DaysAhead is how many days after today have a partition at least: claims by arrival
// lie up to two buckets of 31 days ahead, and a class that is registered claims at once.
const DaysAhead = 64

// Days are those that have a partition, when claims are needed since so long ago and so
// many days ahead. It is pure.
func Days(now time.Time, since time.Duration, ahead int) partition.Span {
	return partition.Span{First: now.Add(-since), Last: now.AddDate(0, 0, max(ahead, DaysAhead))}
}

// OldBucketDays is how many days ahead the old buckets of classes need, which may have
// been longer than buckets are now. It is pure.
func OldBucketDays(windows []consumerdb.WindowsRow, now time.Time) (days int) {
	for _, w := range windows {
		if b := BucketsIn(w); w.RetiredAt == nil && b.Changing(now) {
			days = max(days, int(b.Old/(24*time.Hour))+2)
		}
	}
	return days
}

// BucketsIn are the buckets of a class that is registered.
func BucketsIn(w consumerdb.WindowsRow) Buckets {
	return BucketsOf(w.Keyed, consumerdb.Micros(w.WindowUs), consumerdb.Micros(w.BucketUs),
		consumerdb.Micros(w.OldBucketUs), w.OldUntil)
}

// Horizon returns the event time before which claims may be gone; zero when nothing was
// ever dropped.
func Horizon(ctx context.Context, q *consumerdb.Queries) (time.Time, error) {
	at, err := q.Horizon(ctx)
	if errors.Is(err, pgx.ErrNoRows) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("read the horizon: %w", err)
	}
	return at, nil
}
