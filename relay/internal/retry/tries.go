package retry

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/onceward/onceward/cdc"
)

// Bounds of the waits between sessions.
const (
	Min           = 100 * time.Millisecond // after the first failure
	Max           = 10 * time.Second       // after many
	haltedWait    = 5 * time.Second
	haltedMax     = 30 * time.Second // where a try takes the slot
	rivalWait     = 5 * time.Minute  // a try fences the rival
	silenceFactor = 2                // × wal_sender_timeout; doubled by each silent session

	maxSilenceFactor = 1 << 16 // far beyond the longest silence
)

// Limits of one step of a session's start. It is doubled when a start ends by
// it, because a step may have much to do; after a start that succeeds it is what
// it was.
const (
	stepLimit    = 30 * time.Second
	maxStepLimit = 10 * time.Minute
)

// NoAnswerError: a step of a session's start got no answer in time.
type NoAnswerError struct {
	Step  string
	Limit time.Duration
}

// Error implements error.
func (e *NoAnswerError) Error() string {
	return fmt.Sprintf("no answer within %s: %s", e.Limit, e.Step)
}

// Tries says how long to wait between sessions, and how patient the next one is.
// It is pure.
type Tries struct {
	Wait    time.Duration // before the next try after an error
	Silence int           // × wal_sender_timeout
	Limit   time.Duration // of a step of a session's start
	Rivals  Rivals

	halting time.Duration // before the next try of a relay that is halted and had the slot
}

// New is that of a relay that has not tried yet.
func New() *Tries {
	return &Tries{Wait: Min, Silence: silenceFactor, Limit: stepLimit, halting: haltedWait}
}

// Opened notes that a session has begun.
func (t *Tries) Opened() { t.Limit = stepLimit }

// Ended notes how a session ended; steady says that it was of use.
func (t *Tries) Ended(err error, steady bool) {
	if !steady {
		return
	}
	t.Wait, t.halting = Min, haltedWait
	if !errors.Is(err, cdc.ErrSilent) {
		// A server that is mute while it decodes may have sent something
		// before: it is given more time from session to session.
		t.Silence = silenceFactor
	}
}

// Again returns the wait after an error that may pass.
func (t *Tries) Again(err error) time.Duration {
	pause := t.Wait
	t.Wait = min(2*t.Wait, Max)
	var late *NoAnswerError
	switch {
	case errors.Is(err, cdc.ErrSilent):
		t.Silence = min(2*t.Silence, maxSilenceFactor)
	case errors.As(err, &late):
		t.Limit = min(2*t.Limit, maxStepLimit)
	}
	return pause
}

// Halted returns the wait of a relay that is halted. A try that takes the slot
// raises the epoch and asks Kafka for a producer, so it comes ever later; one
// against a rival would fence it each time.
func (t *Tries) Halted(err error, took bool) time.Duration {
	var rival *RivalError
	switch {
	case errors.As(err, &rival):
		return rivalWait
	case !took:
		return haltedWait
	}
	pause := t.halting
	t.halting = min(2*t.halting, haltedMax)
	return pause
}

// Jitter returns something between half of it and one and a half.
func Jitter(pause time.Duration) time.Duration {
	return pause/2 + rand.N(pause) //nolint:gosec // G404: jitter needs no secrecy
}
