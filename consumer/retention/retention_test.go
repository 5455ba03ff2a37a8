package retention

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/outbox"
)

var midnight = time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)

func TestFloorIsRaisedWithinItsBounds(t *testing.T) {
	instant := rapid.Custom(func(t *rapid.T) time.Time {
		return time.UnixMilli(rapid.Int64Range(1_420_070_400_000, 4_000_000_000_000).Draw(t, "ms")).UTC()
	})
	rapid.Check(t, func(t *rapid.T) {
		floor := instant.Draw(t, "floor")
		if rapid.Bool().Draw(t, "of a day") {
			floor = partition.Day(floor)
		}
		window := time.Duration(rapid.Int64Range(int64(time.Minute), int64(400*24*time.Hour)).Draw(t, "window"))
		near := func(name string) time.Time {
			if rapid.Bool().Draw(t, name+" near") {
				return floor.Add(window + time.Duration(rapid.Int64Range(-int64(5*24*time.Hour), int64(5*24*time.Hour)).Draw(t, name)))
			}
			return instant.Draw(t, name)
		}
		now, stream := near("now"), near("stream")
		got := raised(floor, window, &stream, now)

		require.False(t, got.Before(floor), "never lowered")
		require.Equal(t, floor, raised(floor, window, nil, now), "without a stream time it stays")
		if got.Equal(floor) {
			next := partition.Day(floor).AddDate(0, 0, 1)
			require.True(t, next.After(stream.Add(-window)) || next.After(now.Add(-window)), "it stays only if the next day is not due")
			return
		}
		require.Equal(t, partition.Day(got), got, "the start of a UTC day")
		require.False(t, got.After(stream.Add(-window)), "never beyond stream time")
		require.False(t, got.After(now.Add(-window)), "never beyond the clock")
		require.LessOrEqual(t, got.Sub(floor), maxRaise)
	})
}

func TestFloorAtItsEdges(t *testing.T) {
	const day = 24 * time.Hour
	for name, tc := range map[string]struct{ stream, now, want time.Duration }{
		"a day is finished":            {8 * day, 9 * day, day},
		"one millisecond before":       {8*day - time.Millisecond, 9 * day, 0},
		"the clock is behind":          {30 * day, 8*day - time.Millisecond, 0},
		"two days at most":             {30 * day, 30 * day, 2 * day},
		"stream time before the floor": {-day, 9 * day, 0},
	} {
		stream := midnight.Add(tc.stream)
		require.Equal(t, midnight.Add(tc.want), raised(midnight, 7*day, &stream, midnight.Add(tc.now)), name)
	}
	stream := midnight.Add(9 * day)
	require.Equal(t, midnight.Add(day), raised(midnight.Add(-10*time.Hour), 7*day, &stream, stream.Add(-time.Hour)), "a floor that was never raised")
}

func TestFloorReportSaysWhatHoldsItBack(t *testing.T) {
	w := consumerdb.WindowsRow{ConsumerGroup: "billing", Class: "*", WindowUs: (7 * 24 * time.Hour).Microseconds(), Floor: midnight}
	now := midnight.AddDate(0, 0, 8)
	slow := midnight.AddDate(0, 0, 3)
	mark := &consumerdb.SlowestMarksRow{Topic: "orders", KafkaPartition: 3, UpdatedAt: now}
	for want, tc := range map[string]struct {
		mark *consumerdb.SlowestMarksRow
		at   *time.Time
		now  time.Time
	}{
		"the group has saved no progress yet": {now: now},
		"the group has finished nothing of partition 3 of topic orders, which it saved last 2026-11-29T00:00:00Z":                              {mark: mark, now: now},
		"the group has finished partition 3 of topic orders up to events of 2026-11-24T00:00:00Z only, and saved it last 2026-11-29T00:00:00Z": {mark: mark, at: &slow, now: now},
		"one run raises it by two days at most": {mark: mark, at: &now, now: now.AddDate(0, 1, 0)},
	} {
		if tc.mark != nil {
			copied := *tc.mark
			copied.FinishedTime = tc.at
			tc.mark = &copied
		}
		if want == "one run raises it by two days at most" {
			tc.mark.FinishedTime = &tc.now
		}
		r := floorReport(w, tc.mark, tc.now)
		require.Equal(t, want, r.Why)
		require.Equal(t, partition.Day(tc.now).AddDate(0, 0, -7).Sub(r.After), r.Behind)
	}
	mark.FinishedTime = &now
	r := floorReport(w, mark, now)
	require.Equal(t, midnight.AddDate(0, 0, 1), r.After)
	require.Empty(t, r.Why)
	require.Zero(t, r.Behind)

	w.RetiredAt = &now
	r = floorReport(w, mark, now)
	require.Equal(t, midnight, r.After)
	require.True(t, r.Retired)
}

// A floor alarms only when it lies behind, has stood for long and the table grows.
func TestFloorAlarm(t *testing.T) {
	still := FloorReport{Group: "billing", Before: midnight, After: midnight, Behind: 49 * time.Hour, settled: 49 * time.Hour}
	for name, tc := range map[string]struct {
		change  func(*FloorReport)
		growing bool
		want    bool
	}{
		"stands still":            {func(*FloorReport) {}, true, true},
		"nothing comes":           {func(*FloorReport) {}, false, false},
		"is raised":               {func(f *FloorReport) { f.After = midnight.AddDate(0, 0, 1) }, true, false},
		"was raised":              {func(f *FloorReport) { f.settled = 48 * time.Hour }, true, false},
		"lies one day behind":     {func(f *FloorReport) { f.Behind = 24 * time.Hour }, true, false},
		"is that of a lost group": {func(f *FloorReport) { f.Retired = true }, true, false},
	} {
		f := still
		tc.change(&f)
		m := &maintenance{report: &Report{Floors: []FloorReport{f}, Growing: tc.growing}}
		m.alarm()
		require.Equal(t, tc.want, m.report.Floors[0].Wrong, name)
	}
}

// A leaf may go on one combination only: at least one class is in use, and every
// one has its floor at the end of the leaf or above, for long enough.
func TestALeafIsNeededByEachClass(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var windows []consumerdb.WindowsRow
		inUse, passed := 0, true
		for range rapid.IntRange(0, 4).Draw(t, "classes") {
			w := consumerdb.WindowsRow{
				ConsumerGroup: "g", Class: "*", Floor: midnight.Add(time.Duration(rapid.IntRange(-1, 1).Draw(t, "floor"))),
				SettledUs: claims.FloorSettles.Microseconds() + int64(rapid.IntRange(-1, 1).Draw(t, "settled")),
			}
			if rapid.Bool().Draw(t, "retired") {
				w.RetiredAt = &midnight
			} else {
				inUse++
				passed = passed && !w.Floor.Before(midnight) && w.SettledUs >= claims.FloorSettles.Microseconds()
			}
			windows = append(windows, w)
		}
		why := neededBy(windows, midnight, claims.FloorSettles)
		require.Equal(t, inUse > 0 && passed, why == "", why)
	})
}

// TestArrivalClassesHoldByTheClock: and by nothing else, but for claims under the
// starts of buckets, of releases before.
func TestArrivalClassesHoldByTheClock(t *testing.T) {
	now, day := midnight.AddDate(0, 0, 20).Add(time.Hour), partition.Day(midnight.AddDate(0, 0, 20))
	w := consumerdb.WindowsRow{
		ConsumerGroup: "hooks", Class: "*", Keyed: claims.ByArrival, Floor: day.AddDate(0, 0, -1),
		WindowUs: (8 * 24 * time.Hour).Microseconds(), BucketUs: (8 * 24 * time.Hour).Microseconds(),
	}
	r := floorReport(w, nil, now)
	require.Equal(t, day, r.After, "no group needs to run for it")
	require.Zero(t, r.Behind)
	require.Empty(t, r.Why)

	until := now.Add(time.Minute)
	w.Floor, w.OldBucketUs, w.OldUntil = day.AddDate(0, 0, -10), w.BucketUs, &until
	require.Equal(t, day.AddDate(0, 0, -8), floorReport(w, nil, now).After, "they need the bucket that is under way")
	until = now
	r = floorReport(w, nil, now)
	require.Equal(t, day.AddDate(0, 0, -8), r.After)
	require.Equal(t, "one run raises it by two days at most", r.Why)

	w.BucketUs, w.OldBucketUs, w.OldUntil = 0, 0, nil
	require.Equal(t, day.AddDate(0, 0, -8), floorReport(w, nil, now).After, "no program of this release has come")
	require.Equal(t, 10, claims.OldBucketDays([]consumerdb.WindowsRow{w}, now))
}

func TestLowestFloors(t *testing.T) {
	got := lowestFloors([]consumerdb.WindowsRow{
		{ConsumerGroup: "a", Floor: midnight.AddDate(0, 0, 1)},
		{ConsumerGroup: "a", Floor: midnight},
		{ConsumerGroup: "a", Floor: midnight.AddDate(0, 0, -1), RetiredAt: &midnight},
		{ConsumerGroup: "gone", Floor: midnight, RetiredAt: &midnight},
	})
	require.Equal(t, map[string]uuid.UUID{"a": outbox.FirstID(midnight), "gone": uuid.Max}, got)
}

func TestOverdue(t *testing.T) {
	windows := []consumerdb.WindowsRow{
		{Floor: midnight, SettledUs: time.Hour.Microseconds(), FollowedUs: (7 * 24 * time.Hour).Microseconds()},
		{Floor: midnight.AddDate(0, 0, 3), SettledUs: 1, FollowedUs: (7 * 24 * time.Hour).Microseconds()},
		{Floor: midnight.AddDate(-1, 0, 0), RetiredAt: &midnight},
	}
	now := midnight.AddDate(0, 0, 9)
	old := LeafReport{To: midnight.AddDate(0, 0, -2), State: LeafWaiting}
	leaves := []LeafReport{{To: midnight.AddDate(0, 0, 1)}, old, {To: midnight}}
	require.Equal(t, 48*time.Hour+time.Microsecond, overdue(windows, leaves, now))
	require.Equal(t, time.Minute, overdue(windows, leaves, midnight.Add(time.Minute)), "the group that needed them is retired since then")
	require.Zero(t, overdue(windows, leaves, midnight.Add(-time.Minute)), "of clocks that differ")
	windows[2].Floor = old.To
	require.Equal(t, 48*time.Hour+time.Microsecond, overdue(windows, leaves, midnight), "the oldest it did not need")
	windows[1].FollowedUs = time.Minute.Microseconds()
	require.Equal(t, time.Minute, overdue(windows, leaves, now), "a class was registered")
	old.State = LeafDropped
	require.Zero(t, overdue(windows, []LeafReport{old, {To: midnight.Add(1)}}, now))
}

func TestMaintainDefaultsAndBounds(t *testing.T) {
	cfg, err := Config{}.withDefaults()
	require.NoError(t, err)
	require.Equal(t, 64, cfg.Ahead)
	require.Equal(t, 3*time.Second, cfg.LockTimeout)
	require.Equal(t, time.Minute, cfg.settle)
	require.Greater(t, cfg.settle, claims.FloorsKept, "processes keep floors for a shorter time")
	for field, bad := range map[string]Config{"Ahead": {Ahead: -1}, "LockTimeout": {LockTimeout: time.Microsecond}} {
		_, err := bad.withDefaults()
		require.ErrorContains(t, err, field)
	}
}
