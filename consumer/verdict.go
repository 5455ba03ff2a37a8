package consumer

import "time"

// verdict says how an event may be claimed.
type verdict uint8

const (
	// verdictClaim: at or above the floor. Every claim that there was is there.
	verdictClaim verdict = iota
	// verdictLate: below the floor, at an offset that the group has not finished.
	verdictLate
	// verdictReplay: below the floor, and the group may have seen it before.
	verdictReplay
	// verdictSeen: below the floor, at an offset that the group is known to have
	// finished: of this very topic, by its id. It is a duplicate.
	verdictSeen
	// verdictFuture: its event time has not come yet. It is never clamped: a
	// clamped time depends on the arrival, so that a copy has another one.
	verdictFuture
)

// evidence is what the group's mark of the topic partition says of an event.
type evidence uint8

const (
	unknown  evidence = iota // the event came from no topic
	notSeen                  // its offset lies above the mark, or there is no mark
	finished                 // its offset was finished before, as far as is known
	proven                   // the same, and the mark is of the same topic id
)

// question is all that a verdict depends on.
type question struct {
	time     time.Time // inside the id under which the event is claimed
	floor    time.Time // of its class
	now      time.Time // of the database
	skew     time.Duration
	copied   bool // a repair or a replay: published before
	evidence evidence
}

// judge decides. It is pure. The floor decides and not now minus the window, so
// that the verdict and the stored claims cannot disagree: while the backlog of an
// outage is worked off, stream time and with it the floor stand still.
func (q question) judge() verdict {
	switch {
	case q.time.After(q.now.Add(q.skew)):
		return verdictFuture
	case !q.time.Before(q.floor):
		return verdictClaim
	case q.copied:
		return verdictReplay
	case q.evidence == notSeen:
		return verdictLate
	case q.evidence == proven:
		return verdictSeen
	}
	return verdictReplay
}
