package retry

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/publisher"
)

func TestFencesInARowNameTheRival(t *testing.T) {
	fenced := fmt.Errorf("commit: %w", publisher.ErrFenced)
	at := time.Now()
	var r Rivals
	session := func(err error, pause, lasted time.Duration) error {
		began := at.Add(pause)
		at = began.Add(lasted)
		return r.Count(err, began, at)
	}
	for range 5 {
		require.NoError(t, session(fenced, time.Second, time.Second), "zombies of this database come all at once")
	}
	require.NoError(t, session(errors.New("connection reset"), time.Second, 30*time.Second))
	require.NoError(t, session(fenced, time.Second, time.Second))
	require.NoError(t, session(fenced, time.Minute, time.Second), "twice is no proof")
	require.NoError(t, session(fenced, time.Second, time.Minute), "a long session was no rival's")
	require.NoError(t, session(fenced, 15*time.Second, time.Second))
	err := session(fenced, 15*time.Second, time.Second)
	require.ErrorContains(t, err, "fenced 3 times in a row, within 32s, while this relay held its slot: another relay publishes with the same transactional id")
}

// Two relays that fence one another, with a relay's pauses between their
// sessions: each session lasts until the other relay has paused and started.
func TestRivalsFindOut(t *testing.T) {
	for seed := range uint64(100) {
		dice := rand.New(rand.NewPCG(seed, 0))
		var rivals [2]Rivals
		waits, at := [2]time.Duration{Min, Min}, time.Now()
		var found error
		for turn := 0; found == nil; turn++ {
			require.Less(t, turn, 50, "seed %d", seed)
			one, other := turn%2, 1-turn%2
			began := at
			at = began.Add(waits[other]/2 + time.Duration(dice.Int64N(int64(waits[other]+5*time.Second))))
			found = rivals[one].Count(publisher.ErrFenced, began, at)
			waits[one] = min(2*waits[one], Max)
		}
	}
}
