package verdict

import "time"

// Verdict says how an event may be claimed.
type Verdict uint8

const (
	// Claim: at or above the floor. Every claim that there was is there.
	Claim Verdict = iota
	// Late: below the floor, at an offset that the group has not finished.
	Late
	// Replay: below the floor, and the group may have seen it before.
	Replay
	// Seen: below the floor, at an offset that the group is known to have
	// finished: of this very topic, by its id. It is a duplicate.
	Seen
	// Future: its event time has not come yet. It is never clamped: a
	// clamped time depends on the arrival, so that a copy has another one.
	Future
)

// Evidence is what the group's mark of the topic partition says of an event.
type Evidence uint8

// What a mark may say.
const (
	Unknown  Evidence = iota // the event came from no topic
	NotSeen                  // its offset lies above the mark, or there is no mark
	Finished                 // its offset was finished before, as far as is known
	Proven                   // the same, and the mark is of the same topic id
)

// Question is all that a verdict depends on.
type Question struct {
	Time     time.Time // inside the id under which the event is claimed
	Floor    time.Time // of its class
	Now      time.Time // of the database
	Skew     time.Duration
	Copied   bool // a repair or a replay: published before
	Evidence Evidence
}

// Judge decides. It is pure. The floor decides and not now minus the window, so
// that the verdict and the stored claims cannot disagree: while the backlog of an
// outage is worked off, stream time and with it the floor stand still.
func (q Question) Judge() Verdict {
	switch {
	case q.Time.After(q.Now.Add(q.Skew)):
		return Future
	case !q.Time.Before(q.Floor):
		return Claim
	case q.Copied:
		return Replay
	case q.Evidence == NotSeen:
		return Late
	case q.Evidence == Proven:
		return Seen
	}
	return Replay
}
