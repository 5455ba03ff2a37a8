package consumer

import "fmt"

// Outcome says what became of one delivery of an event.
type Outcome uint8

const (
	// Processed: this delivery committed the effect.
	Processed Outcome = iota + 1
	// Duplicate: the effect was committed before; nothing was done.
	Duplicate
	// InProgress: another transaction holds the claim. Nothing was done, and
	// the message must not be acknowledged: the other one may still roll back.
	InProgress
	// Mismatch: the key was claimed before by an event with other content.
	// Nothing was done.
	Mismatch
	// DeadLettered: the message is kept in onceward.consumer_dead_letters.
	DeadLettered
	// Ignored: the event's type was given to [Router.Ignore].
	Ignored
	// Replay: the event's time lies below the floor of its class, where claims
	// may be gone, and the group may have applied it before. Nothing was done.
	// One from a topic is [DeadLettered] instead.
	Replay
	// FromFuture: the event's time has not come yet. Nothing was done. One from a
	// topic is [DeadLettered] instead.
	FromFuture
)

var outcomeNames = [...]string{
	Processed:    "processed",
	Duplicate:    "duplicate",
	InProgress:   "in progress",
	Mismatch:     "mismatch",
	DeadLettered: "dead-lettered",
	Ignored:      "ignored",
	Replay:       "replay",
	FromFuture:   "from the future",
}

// String returns the outcome in words.
func (o Outcome) String() string {
	if o == 0 || int(o) >= len(outcomeNames) {
		return fmt.Sprintf("outcome(%d)", uint8(o))
	}
	return outcomeNames[o]
}

// Acknowledges reports whether the message is finished, so that its offset may
// be committed. It is true for every outcome but [InProgress].
func (o Outcome) Acknowledges() bool {
	return o != InProgress && o >= Processed && o <= FromFuture
}
