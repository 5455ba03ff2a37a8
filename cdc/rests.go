package cdc

import "time"

const (
	// restInterval is the least time between two rests, and so how long a rest is at most, where the
	// reader is not late.
	restInterval = 4 * time.Millisecond
	// restLate is by how much of what it is late that is longer, up to restLateInterval, whatever the clocks
	// say: a server with much to send needs half the time for a small message where nobody waits for each.
	restLate         = 16
	restLateInterval = 4 * restInterval
	// restBytes is how much may come meanwhile: what the network does not hold, the server cannot send.
	restBytes = 3 << 19
)

// rests decides how long a reader rests. It is pure.
type rests struct {
	last   time.Time     // when the last one ended
	marked time.Time     // when the flow was looked at
	taken  int64         // what had been taken by then, in bytes
	full   time.Duration // in which restBytes came, by the last two looks
}

// due returns how long to rest now, where what was read last is late by a time and so much was taken
// in all; nothing or less: not at all.
func (r *rests) due(now time.Time, late time.Duration, taken int64) time.Duration {
	if span := now.Sub(r.marked); span >= restInterval {
		r.full = min(span, time.Second) * restBytes / time.Duration(max(taken-r.taken, 1))
		r.marked, r.taken = now, taken
	}
	return max(restInterval, min(late/restLate, restLateInterval, r.full)) - now.Sub(r.last)
}
