package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"
)

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

// ErrHeldBack: an earlier event of the same aggregate was not finished, so that
// this one was not tried.
var ErrHeldBack = errors.New("held back behind an earlier event of its aggregate")

// Delivery is what became of one event of a batch.
type Delivery struct {
	Outcome Outcome // means nothing with an error
	Err     error
}

// Finished reports whether the message may be acknowledged.
func (d Delivery) Finished() bool { return d.Err == nil && d.Outcome.Acknowledges() }

// told is a delivery as its caller is told of it, and counts its event.
func (d Delivery) told(ctx context.Context, p *Processor, ev *Event) Delivery {
	switch {
	case d.Err != nil:
		d.Err = fmt.Errorf("handle %s %s: %w", ev.Type, ev.Key, d.Err)
	case d.Outcome == Processed || d.Outcome == Duplicate:
		p.marks.applied(ctx, ev)
	}
	return d
}

// Peek is what can be told of a record before it is handled.
type Peek struct {
	// EventTime is the time by which the event counts towards stream time: that
	// inside its key, or of now when its class is keyed by arrival; zero for a
	// malformed record and for a time that has not come yet.
	EventTime time.Time
	// Batch is not nil when the record's event shares a transaction with others,
	// see [Router.HandleRecords].
	Batch *BatchOptions
}
