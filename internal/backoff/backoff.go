// Package backoff has the pauses between tries: they double up to a ceiling. It keeps
// no time itself; whoever waits looks after its own end.
package backoff

import (
	"math"
	"math/rand/v2"
	"time"
)

// After returns the pause before the retry of this number: first at retry 1, doubled
// with each, up to ceiling. It is pure.
func After(retry int, first, ceiling time.Duration) time.Duration {
	if retry < 1 {
		retry = 1
	}
	if retry > int(math.Log2(float64(ceiling/first)))+1 {
		return ceiling
	}
	return min(first<<(retry-1), ceiling)
}

// Jittered counts tries and draws their pauses: members of a group that failed together
// must not come back together. A copy counts for itself. It belongs to one goroutine.
type Jittered struct {
	Min, Max time.Duration
	tries    int
}

// Reset starts again from the shortest pause.
func (j *Jittered) Reset() { j.tries = 0 }

// Next returns the next pause: between a half of and the whole of a time that
// doubles from Min to Max.
func (j *Jittered) Next() time.Duration {
	j.tries++
	pause := After(j.tries, j.Min, j.Max)
	return pause/2 + rand.N(pause/2+1) //nolint:gosec // jitter is no secret
}
