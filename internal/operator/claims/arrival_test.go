package claims

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/outbox"
)

// Every id under which an arrival can have claimed an event, and that has a
// partition, is looked for.
func TestNoArrivalIsMissed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := time.UnixMilli(rapid.Int64Range(1_600_000_000_000, 1_900_000_000_000).Draw(t, "first")).UTC().Truncate(24 * time.Hour)
		last := first.AddDate(0, 0, rapid.IntRange(1, 20).Draw(t, "days"))
		window := time.Duration(rapid.Int64Range(int64(30*time.Minute/time.Millisecond), int64(30*24*time.Hour/time.Millisecond)).Draw(t, "window")) * time.Millisecond
		at := time.UnixMilli(rapid.Int64Range(first.Add(-window).UnixMilli(), last.Add(window).UnixMilli()).Draw(t, "at"))
		id := uuid.UUID{1}
		found := arrivals(id, window, first, last)
		for _, claimed := range claims.IDs(id, window, at) {
			if start := outbox.IDTime(claimed); !start.Before(first) && start.Before(last) {
				require.Contains(t, found, claimed)
			}
		}
	})
	require.Empty(t, arrivals(uuid.UUID{1}, 0, time.Time{}, time.Now()), "a window that is none")
}
