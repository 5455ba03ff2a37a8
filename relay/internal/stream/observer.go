package stream

import (
	"time"
)

// Observer is told what becomes of events, to be counted. Nothing is called for
// every event that is published.
type Observer interface {
	Read(events int)
	// Published: acknowledged, with the letters among it that a retry released. commit is
	// that of the first event; zero: it is not known.
	Published(events, letters int, commit time.Time)
	// Committed: one Kafka transaction, with what it published.
	Committed(events, letters int, took time.Duration, commit time.Time)
	Skipped(reason string)
	Waited(events int)
	Parked(events int)
	// ParkedNow: so many aggregates are parked now. It follows every turn of the pump: a
	// control that discards frees them as a retry does.
	ParkedNow(aggregates int)
	// Control: an operator's, which ends skipped.
	Control(action string)
	Holding(routes map[string]HeldRoute)
}

// Reasons for which an event is skipped.
const (
	skippedByLetter  = "letter"
	skippedByCommand = "word" // an operator's
	SkippedByControl = "control"
	skippedByGap     = "gap"
	skippedErased    = "erased"
)

// HeldRoute is why events of a route wait, and how many.
type HeldRoute struct {
	Why    string
	Events int
}

// Phase is what the pump does, as the health pages show it.
type Phase string

const (
	phaseStreams Phase = "streaming"
	phasePaused  Phase = "paused" // an operator wants it so
	phaseHalted  Phase = "halted" // an operator has to decide about an event or a topic
)
