package relay

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/onceward/onceward/cdc"
)

// tries says how long to wait between sessions, and how patient the next one is.
// It is pure.
type tries struct {
	wait    time.Duration // before the next try after an error
	silence int           // × wal_sender_timeout
	limit   time.Duration // of a step of a session's start
	halting time.Duration // before the next try of a relay that is halted and had the slot
	rivals  rivalry
}

func newTries() *tries {
	return &tries{wait: backoffMin, silence: silenceFactor, limit: stepLimit, halting: haltedWait}
}

// opened notes that a session has begun.
func (t *tries) opened() { t.limit = stepLimit }

// ended notes how a session ended; steady says that it was of use.
func (t *tries) ended(err error, steady bool) {
	if !steady {
		return
	}
	t.wait, t.halting = backoffMin, haltedWait
	if !errors.Is(err, cdc.ErrSilent) {
		// A server that is mute while it decodes may have sent something
		// before: it is given more time from session to session.
		t.silence = silenceFactor
	}
}

// again returns the wait after an error that may pass.
func (t *tries) again(err error) time.Duration {
	pause := t.wait
	t.wait = min(2*t.wait, backoffMax)
	var late *NoAnswerError
	switch {
	case errors.Is(err, cdc.ErrSilent):
		t.silence = min(2*t.silence, maxSilenceFactor)
	case errors.As(err, &late):
		t.limit = min(2*t.limit, maxStepLimit)
	}
	return pause
}

// halted returns the wait of a relay that is halted. A try that takes the slot
// raises the epoch and asks Kafka for a producer, so it comes ever later; one
// against a rival would fence it each time.
func (t *tries) halted(err error, took bool) time.Duration {
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

// jitter returns something between half of it and one and a half.
func jitter(pause time.Duration) time.Duration {
	return pause/2 + rand.N(pause) //nolint:gosec // G404: jitter needs no secrecy
}
