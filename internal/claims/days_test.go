package claims_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/outbox"
)

func TestDays(t *testing.T) {
	now := midnight.Add(13 * time.Hour)
	require.Equal(t, partition.Span{First: now.AddDate(0, 0, -7), Last: now.AddDate(0, 0, 64)}, claims.Days(now, 7*oneDay, 14), "whatever was asked for")
	require.Equal(t, now.AddDate(0, 0, 70), claims.Days(now, 7*oneDay, 70).Last)
	// Both ids of a claim by arrival lie in it, ahead of its arrival: also those of a
	// class that is registered until the next run, which may come a day late.
	rapid.Check(t, func(t *rapid.T) {
		window := time.Duration(rapid.Int64Range(time.Minute.Milliseconds(), (3660*oneDay).Milliseconds()).Draw(t, "window")) * time.Millisecond
		at := midnight.Add(time.Duration(rapid.Int64Range(0, int64(400*oneDay)).Draw(t, "at")))
		span := claims.Days(at, 7*oneDay, 1)
		for _, keyed := range []string{claims.ByArrival, "event-time"} {
			for _, id := range claims.IDs(uuid.New(), claims.BucketOf(keyed, window), at.AddDate(0, 0, 1)) {
				require.True(t, outbox.IDTime(id).After(at))
				require.True(t, outbox.IDTime(id).Before(partition.Day(span.Last).AddDate(0, 0, 1)))
			}
		}
	})
}
