package verdict_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/consumer/internal/verdict"
)

func TestVerdicts(t *testing.T) {
	const day, ms = 24 * time.Hour, time.Millisecond
	now := time.Date(2026, 12, 1, 0, 30, 0, 0, time.UTC)
	floor := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC) // a month's last day
	cases := map[string]struct {
		at     time.Time
		copied bool
		seen   verdict.Evidence
		want   verdict.Verdict
	}{
		"at the floor":                      {at: floor, seen: verdict.Finished, want: verdict.Claim},
		"one below the floor, first sight":  {at: floor.Add(-ms), seen: verdict.NotSeen, want: verdict.Late},
		"one below the floor, seen":         {at: floor.Add(-ms), seen: verdict.Finished, want: verdict.Replay},
		"one below the floor, proven seen":  {at: floor.Add(-ms), seen: verdict.Proven, want: verdict.Seen},
		"a copy, whatever its offset":       {at: floor.Add(-ms), copied: true, seen: verdict.Proven, want: verdict.Replay},
		"at the floor, proven seen":         {at: floor, seen: verdict.Proven, want: verdict.Claim},
		"one below the floor, from nowhere": {at: floor.Add(-ms), want: verdict.Replay},
		"a copy below the floor":            {at: floor.Add(-ms), copied: true, seen: verdict.NotSeen, want: verdict.Replay},
		"a copy above the floor":            {at: floor, copied: true, seen: verdict.NotSeen, want: verdict.Claim},
		"last of the month":                 {at: floor.Add(day - ms), want: verdict.Claim},
		"first of the month":                {at: floor.Add(day), want: verdict.Claim},
		"now":                               {at: now, want: verdict.Claim},
		"as far ahead as may be":            {at: now.Add(5 * time.Minute), want: verdict.Claim},
		"one further ahead":                 {at: now.Add(5*time.Minute + ms), seen: verdict.NotSeen, want: verdict.Future},
		"a copy from the future":            {at: now.Add(day), copied: true, want: verdict.Future},
		"the oldest key":                    {at: time.Date(2015, 1, 1, 0, 0, 0, 0, time.UTC), seen: verdict.NotSeen, want: verdict.Late},
		"before 1970":                       {at: time.UnixMilli(-1), seen: verdict.Finished, want: verdict.Replay},
		"the latest of 48 bits":             {at: time.UnixMilli(1<<48 - 1), seen: verdict.NotSeen, want: verdict.Future},
	}
	for name, c := range cases {
		q := verdict.Question{Time: c.at, Floor: floor, Now: now, Skew: 5 * time.Minute, Copied: c.copied, Evidence: c.seen}
		require.Equal(t, c.want, q.Judge(), name)
	}
}

// TestVerdictsAgreeWithTheFloor: whatever else, an event is claimed if and only
// if it lies between floor and now, and raising the floor turns no event that was
// refused into one that is claimed.
func TestVerdictsAgreeWithTheFloor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		instant := func(name string) time.Time {
			return time.UnixMilli(rapid.Int64Range(1_700_000_000_000, 1_700_000_100_000).Draw(t, name))
		}
		q := verdict.Question{
			Time: instant("time"), Floor: instant("floor"), Now: instant("now"),
			Skew:   time.Duration(rapid.Int64Range(0, 1000).Draw(t, "skew")) * time.Millisecond,
			Copied: rapid.Bool().Draw(t, "copied"), Evidence: rapid.SampledFrom([]verdict.Evidence{verdict.Unknown, verdict.NotSeen, verdict.Finished, verdict.Proven}).Draw(t, "seen"),
		}
		inside := !q.Time.Before(q.Floor) && !q.Time.After(q.Now.Add(q.Skew))
		require.Equal(t, inside, q.Judge() == verdict.Claim)
		if q.Copied || q.Evidence != verdict.NotSeen {
			require.NotEqual(t, verdict.Late, q.Judge(), "late needs evidence")
		}
		raised := q
		raised.Floor = raised.Floor.Add(time.Duration(rapid.Int64Range(0, 100_000).Draw(t, "raised")) * time.Millisecond)
		if q.Judge() != verdict.Claim {
			require.NotEqual(t, verdict.Claim, raised.Judge())
		}
	})
}
