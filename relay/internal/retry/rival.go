package retry

import (
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/publisher"
)

// A relay gives up when so many of its sessions in a row, each the owner of the
// slot, were fenced in Kafka, and the first of them so long ago. One of this
// database that lost the slot fences the owner once or twice, by a request that
// was under way or that it sends as it wakes, and stands by; who goes on for
// this long never asks for the slot here.
const (
	rivalFenced = 3
	rivalLasts  = 30 * time.Second
)

// calmSession is after how long a session counts as one that nobody fenced: the
// coordinator says the same to a relay that was stopped for longer than its
// transaction's timeout. A rival that pauses as this relay does ([Max])
// comes sooner.
const calmSession = 2*Max + 10*time.Second

// RivalError: somebody uses this relay's transactional id without having its
// slot. To go on would be to fence one another for ever.
type RivalError struct {
	Times  int
	Within time.Duration // from the first of them to the last
	Err    error         // what the last session ended with; it names the id
}

// Error implements error.
func (e *RivalError) Error() string {
	return fmt.Sprintf("fenced %d times in a row, within %s, while this relay held its slot: another relay publishes with the same transactional id, from another database with the same system identifier "+
		"(a copy or a restored backup that is running) and the same slot name; stop that one, or, if it is to run beside this, give it a Kafka of its own (kafka.brokers): %v",
		e.Times, e.Within.Round(time.Second), e.Err)
}

// Unwrap returns the cause.
func (e *RivalError) Unwrap() error { return e.Err }

// Rivals counts sessions that were fenced. It is pure.
type Rivals struct {
	fenced int
	first  time.Time // when the first of them ended
}

// Count takes the end of a session of the owner, and returns an error when it
// was one too many.
func (r *Rivals) Count(err error, began, ended time.Time) error {
	switch {
	case !errors.Is(err, publisher.ErrFenced):
		r.fenced = 0
		return nil
	case r.fenced == 0 || ended.Sub(began) >= calmSession:
		r.fenced, r.first = 0, ended
	}
	r.fenced++
	within := ended.Sub(r.first)
	if r.fenced < rivalFenced || within < rivalLasts {
		return nil
	}
	return &RivalError{Times: r.fenced, Within: within, Err: err}
}
