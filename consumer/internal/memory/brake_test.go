package memory_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/consumer/internal/memory"
)

// relative are clocks by one instant.
type relative struct{ Event, Database, Process time.Duration }

func (r relative) at(skew time.Duration) memory.Clocks {
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	return memory.Clocks{Event: at.Add(r.Event), Database: at.Add(r.Database), Process: at.Add(r.Process), Skew: skew}
}

// Whose clock it is, by three of them.
func TestWhoseClock(t *testing.T) {
	const skew = 5 * time.Minute
	for name, c := range map[string]struct {
		clocks relative
		full   bool
		want   string
	}{
		"the database is behind":               {relative{Event: 0, Database: -2 * time.Hour, Process: time.Second}, false, "that of the database is 2h0m1s behind this program's, by which the event time 2026-01-01T12:00:00Z has come"},
		"behind, and the producer a bit ahead": {relative{Event: 4 * time.Minute, Database: -2 * time.Hour}, false, "that of the database is 2h0m0s behind"},
		"the producer is ahead":                {relative{Event: 2 * time.Hour}, false, ""},
		"ahead of all, who agree by seconds":   {relative{Event: skew + time.Second, Process: 2 * time.Second}, false, ""},
		"all producers are ahead":              {relative{Event: 2 * time.Hour, Process: time.Minute}, true, "2h0m0s ahead of the database's clock and 1h59m0s ahead of this program's"},
		"the process is behind too":            {relative{Event: 2 * time.Hour, Process: -time.Hour}, false, ""},
	} {
		err := c.clocks.at(skew).Refusal(c.full)
		if c.want == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorIs(t, err, memory.ErrClock, name)
		require.ErrorContains(t, err, c.want, name)
	}
}

// However events come, at most so many more become letters than are applied.
func TestBrakeHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b memory.Brake
		letters, applied, level := 0, 0, 0
		share := rapid.IntRange(0, 100).Draw(t, "share")
		for range 1000 {
			if rapid.IntRange(0, 99).Draw(t, "event") >= share {
				b.Applied()
				applied++
				level = max(level-1, 0)
			} else if !b.Full() {
				b.Letter()
				letters++
				level++
			}
			require.Equal(t, level >= memory.FutureLetters, b.Full())
		}
		require.LessOrEqual(t, letters, memory.FutureLetters+applied)
	})
}
