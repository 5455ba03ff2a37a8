package relay

import (
	"time"
)

// observer is told what becomes of events, to be counted. Nothing is called for
// every event that is published.
type observer interface {
	read(events int)
	published(events int, commit time.Time)
	// committed: one Kafka transaction, with the events that it published.
	committed(events int, took time.Duration, reached time.Time)
	rotated(producers uint64)
	skipped(reason string)
	waited(events int)
	parked(events, aggregates int)
	parkedNow(aggregates int)
	letterPublished()
	// control: an operator's, which ends skipped.
	control(action string)
	holding(routes map[string]heldRoute)
}

// Reasons for which an event is skipped.
const (
	skippedByLetter  = "letter"
	skippedByWord    = "word"
	skippedByControl = "control"
	skippedByGap     = "gap"
	skippedErased    = "erased"
)

// heldRoute is why events of a route wait, and how many.
type heldRoute struct {
	why    string
	events int
}

// phase is what the pump does, as the health pages show it.
type phase string

const (
	phaseStreams phase = "streaming"
	phasePaused  phase = "paused" // an operator wants it so
	phaseHalted  phase = "halted" // an operator has to decide about an event or a topic
)
