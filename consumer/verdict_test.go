package consumer_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/consumer"
)

func TestVerdicts(t *testing.T) {
	const day, ms = 24 * time.Hour, time.Millisecond
	now := time.Date(2026, 12, 1, 0, 30, 0, 0, time.UTC)
	floor := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC) // a month's last day
	cases := map[string]struct {
		at     time.Time
		copied bool
		seen   string
		want   string
	}{
		"at the floor":                      {at: floor, seen: "finished", want: "claim"},
		"one below the floor, first sight":  {at: floor.Add(-ms), seen: "not seen", want: "late"},
		"one below the floor, seen":         {at: floor.Add(-ms), seen: "finished", want: "replay"},
		"one below the floor, proven seen":  {at: floor.Add(-ms), seen: "proven", want: "seen"},
		"a copy, whatever its offset":       {at: floor.Add(-ms), copied: true, seen: "proven", want: "replay"},
		"at the floor, proven seen":         {at: floor, seen: "proven", want: "claim"},
		"one below the floor, from nowhere": {at: floor.Add(-ms), want: "replay"},
		"a copy below the floor":            {at: floor.Add(-ms), copied: true, seen: "not seen", want: "replay"},
		"a copy above the floor":            {at: floor, copied: true, seen: "not seen", want: "claim"},
		"last of the month":                 {at: floor.Add(day - ms), want: "claim"},
		"first of the month":                {at: floor.Add(day), want: "claim"},
		"now":                               {at: now, want: "claim"},
		"as far ahead as may be":            {at: now.Add(5 * time.Minute), want: "claim"},
		"one further ahead":                 {at: now.Add(5*time.Minute + ms), seen: "not seen", want: "future"},
		"a copy from the future":            {at: now.Add(day), copied: true, want: "future"},
		"the oldest key":                    {at: time.Date(2015, 1, 1, 0, 0, 0, 0, time.UTC), seen: "not seen", want: "late"},
		"before 1970":                       {at: time.UnixMilli(-1), seen: "finished", want: "replay"},
		"the latest of 48 bits":             {at: time.UnixMilli(1<<48 - 1), seen: "not seen", want: "future"},
	}
	for name, c := range cases {
		q := consumer.Question{Time: c.at, Floor: floor, Now: now, Skew: 5 * time.Minute, Copied: c.copied, Seen: c.seen}
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
		q := consumer.Question{
			Time: instant("time"), Floor: instant("floor"), Now: instant("now"),
			Skew:   time.Duration(rapid.Int64Range(0, 1000).Draw(t, "skew")) * time.Millisecond,
			Copied: rapid.Bool().Draw(t, "copied"), Seen: rapid.SampledFrom([]string{"", "not seen", "finished", "proven"}).Draw(t, "seen"),
		}
		inside := !q.Time.Before(q.Floor) && !q.Time.After(q.Now.Add(q.Skew))
		require.Equal(t, inside, q.Judge() == "claim")
		if q.Copied || q.Seen != "not seen" {
			require.NotEqual(t, "late", q.Judge(), "late needs evidence")
		}
		raised := q
		raised.Floor = raised.Floor.Add(time.Duration(rapid.Int64Range(0, 100_000).Draw(t, "raised")) * time.Millisecond)
		if q.Judge() != "claim" {
			require.NotEqual(t, "claim", raised.Judge())
		}
	})
}

func TestClassesAreChecked(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), "host=127.0.0.1 port=1") // is not asked
	require.NoError(t, err)
	defer pool.Close()
	for want, c := range map[string][]consumer.Class{
		`Pattern ""`:                    {{Window: time.Hour}},
		`Pattern "a*b"`:                 {{Pattern: "a*b", Window: time.Hour}},
		`Window 0s of "a"`:              {{Pattern: "a"}},
		`Window 1m0.0000005s`:           {{Pattern: "a", Window: time.Minute + 500}},
		`is shorter than its Bucket`:    {{Pattern: "a", Window: time.Hour, Bucket: 2 * time.Hour}},
		`Late "never" of "a"`:           {{Pattern: "a", Window: time.Hour, Late: "never"}},
		`Replay "never" of "a"`:         {{Pattern: "a", Window: time.Hour, Replay: "never"}},
		`Keyed "never" of "a"`:          {{Pattern: "a", Window: time.Hour, Keyed: "never"}},
		`at most 744h0m0s of a class`:   {{Pattern: "a", Window: 31*24*time.Hour + time.Millisecond, Keyed: consumer.ByArrival}},
		`Classes[1]: Pattern "a" is th`: {{Pattern: "a", Window: time.Hour}, {Pattern: "a", Window: time.Minute}},
	} {
		_, err := consumer.New(t.Context(), consumer.Config{Group: "g", DB: pool, Classes: c})
		require.ErrorContains(t, err, want)
	}
}
