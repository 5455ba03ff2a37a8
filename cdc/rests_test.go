package cdc

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Much that comes is not rested for longer than the network can hold it, however late it is; a look
// soon after another says nothing of the flow.
func TestRestsAreShortWhereMuchComes(t *testing.T) {
	const late = time.Hour
	now := time.Now()
	for perSecond, want := range map[int64]time.Duration{
		50 << 20: restLateInterval, 150 << 20: 10 * time.Millisecond, 600 << 20: restInterval, 1 << 30: restInterval,
	} {
		r := rests{last: now, marked: now, full: time.Hour}
		for at := now.Add(restInterval); at.Before(now.Add(time.Second)); at = at.Add(restInterval) {
			r.due(at, late, int64(at.Sub(now).Seconds()*float64(perSecond)))
			r.last = at
			require.InDelta(t, want, r.due(at.Add(time.Microsecond), late, r.taken+1), float64(2*time.Microsecond), perSecond)
		}
	}
	r := rests{last: now.Add(-24 * 365 * time.Hour)} // a silence
	require.Negative(t, r.due(now, late, 1<<40))
	r.last = now
	require.Equal(t, restLateInterval, r.due(now.Add(24*time.Hour), late, 1<<40)+24*time.Hour)
}
