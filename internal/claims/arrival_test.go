package claims_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/outbox"
)

const oneDay = 24 * time.Hour

var midnight = time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)

// days are the names of the partitions of these days around an instant.
func daysAround(at time.Time, back, ahead int) (names []string) {
	for _, p := range partition.Days(claims.Name, at.AddDate(0, 0, -back), at.AddDate(0, 0, ahead)) {
		names = append(names, p.Name)
	}
	return names
}

func meet(a, b []uuid.UUID) bool {
	return slices.ContainsFunc(a, func(id uuid.UUID) bool { return slices.Contains(b, id) })
}

// TestCopiesMeetOverAChange (W4): of two copies within the old length of one
// another, the first claimed before the change and the second after it, each pair
// shares an id, whether the first was claimed under the ends of its buckets or, by
// a release before them, under the starts.
func TestCopiesMeetOverAChange(t *testing.T) {
	changes := [][2]time.Duration{{time.Hour, 61 * time.Minute}, {oneDay, 3 * oneDay}, {3 * oneDay, 4 * oneDay}, {7 * oneDay, 8 * oneDay}, {31 * oneDay, time.Minute}, {time.Hour, time.Hour}}
	rapid.Check(t, func(t *rapid.T) {
		c := rapid.SampledFrom(changes).Draw(t, "change")
		first := midnight.Add(time.Duration(rapid.Int64Range(0, (400*oneDay).Milliseconds()).Draw(t, "first")) * time.Millisecond)
		second := first.Add(time.Duration(rapid.Int64Range(0, c[0].Milliseconds()).Draw(t, "apart")) * time.Millisecond)
		id := uuid.New()
		b := claims.Buckets{Length: c[1], Old: c[0], OldUntil: second.Add(time.Millisecond)}
		ids := b.IDs(id, second, daysAround(second, 32, 70))
		require.True(t, slices.IsSortedFunc(ids, claims.Compare))
		require.Len(t, slices.Compact(slices.Clone(ids)), len(ids))
		require.True(t, meet(ids, claims.Buckets{Length: c[0]}.IDs(id, first, nil)))
		require.True(t, meet(ids, claims.Starts(id, c[0], first)), "of the release before")

		after := second.Add(time.Duration(rapid.Int64Range(1, c[1].Milliseconds()).Draw(t, "after")) * time.Millisecond)
		require.True(t, meet(ids, b.IDs(id, after, nil)), "and those who come when it is over")
		require.Len(t, b.IDs(id, after, nil), 2)
	})
}

// TestOldIDsWithoutPartition: under them nothing is claimed, and nothing can be.
func TestOldIDsWithoutPartition(t *testing.T) {
	id, at := uuid.New(), midnight.Add(7*oneDay/2)
	b := claims.BucketsOf(claims.ByArrival, 7*oneDay, 0, 0, nil)
	require.Equal(t, 7*oneDay, b.Length)
	require.True(t, b.Changing(at), "as long as no program of this release has registered the class")
	all := b.IDs(id, at, daysAround(at, 30, 30))
	require.Len(t, all, 3)
	require.Equal(t, all[1:], b.IDs(id, at, daysAround(at, 0, 30)))
}

func TestBucketOf(t *testing.T) {
	for _, tc := range []struct {
		keyed        string
		window, want time.Duration
	}{
		{"event-time", 15 * time.Minute, 15 * time.Minute}, {"event-time", 3660 * oneDay, 7 * oneDay}, {claims.ByArrival, 31 * oneDay, 31 * oneDay}, {claims.ByArrival, 90 * oneDay, 31 * oneDay},
	} {
		require.Equal(t, tc.want, claims.BucketOf(tc.keyed, tc.window))
	}
}

// TestArrivalIDs: copies within one window share an id, copies two windows apart
// share none, other events never do.
func TestArrivalIDs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id, other := uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id")), uuid.New()
		window := time.Duration(rapid.Int64Range(60_000, 1_000_000_000).Draw(t, "window")) * time.Millisecond
		first := time.UnixMilli(rapid.Int64Range(1_420_070_400_000, 4_000_000_000_000).Draw(t, "first"))
		apart := time.Duration(rapid.Int64Range(0, window.Milliseconds()).Draw(t, "apart")) * time.Millisecond
		a, b := claims.IDs(id, window, first), claims.IDs(id, window, first.Add(apart))
		require.True(t, a[0] == b[0] || a[1] == b[0] || a[0] == b[1], "%v and %v", a, b)
		far := claims.IDs(id, window, first.Add(2*window))
		require.NotContains(t, a, far[0])
		require.NotContains(t, a, far[1])
		for _, x := range a {
			require.NotContains(t, claims.IDs(other, window, first), x)
			require.Equal(t, uuid.Version(8), x.Version())
			require.Equal(t, uuid.RFC4122, x.Variant())
		}
		require.True(t, outbox.IDTime(a[0]).After(first), "ahead, where partitions are made beforehand")
		require.LessOrEqual(t, outbox.IDTime(a[0]).Sub(first), window)
		require.Equal(t, window, outbox.IDTime(a[1]).Sub(outbox.IDTime(a[0])))
	})
}

// TestThen: what arrived before the change is looked for where it was claimed, and nowhere else; what
// arrives now is claimed in both, whatever has become of the clock.
func TestThen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		old := time.Duration(rapid.Int64Range(1, 31*24*60).Draw(t, "minutes")) * time.Minute
		changed := midnight.Add(time.Duration(rapid.Int64Range(0, int64(400*oneDay)).Draw(t, "changed")))
		b := claims.Buckets{Length: 3 * time.Hour, Old: old, OldUntil: changed.Add(2*old + oneDay)}
		before := changed.Add(-time.Hour - time.Duration(rapid.Int64Range(1, int64(90*oneDay)).Draw(t, "before")))
		id, days := uuid.New(), daysAround(before, 40, 70)
		require.Equal(t, claims.Buckets{Length: old}.IDs(id, before, days), b.Then(before, changed).IDs(id, before, days))
		require.Equal(t, b, b.Then(before, before), "that is now")
		after := changed.Add(time.Duration(rapid.Int64Range(0, int64(90*oneDay)).Draw(t, "after")))
		require.Equal(t, b, b.Then(after, after.Add(time.Hour)))
	})
	never := claims.Buckets{Length: time.Hour}
	require.Equal(t, never, never.Then(midnight, midnight.Add(oneDay)))
}
