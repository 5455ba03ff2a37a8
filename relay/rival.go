package relay

import (
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/publisher"
)

// maxFenced is how many sessions in a row, each the owner of the slot, may be
// fenced in Kafka before the relay gives up: who fences an owner does not have
// its slot, and so is not of this database.
const maxFenced = 3

// calmSession is after how long a session counts as one that nobody fenced: the
// coordinator says the same to a relay that was stopped for longer than
// its transaction's timeout.
const calmSession = 10 * time.Second

// RivalError: somebody uses this relay's transactional id without having its
// slot. To go on would be to fence one another for ever.
type RivalError struct {
	Times int
	Err   error // what the last session ended with; it names the id
}

// Error implements error.
func (e *RivalError) Error() string {
	return fmt.Sprintf("fenced %d times in a row while this relay held its slot: another relay publishes with the same transactional id, from another database with the same system identifier "+
		"(a copy or a restored backup that is running) and the same slot name; stop that one, or give one of them another postgres.slot.name: %v", e.Times, e.Err)
}

// Unwrap returns the cause.
func (e *RivalError) Unwrap() error { return e.Err }

// rivalry counts sessions that were fenced. It is pure.
type rivalry struct{ fenced int }

// count takes the end of a session of the owner, and returns an error when it
// was one too many.
func (r *rivalry) count(err error, lasted time.Duration) error {
	if lasted >= calmSession || !errors.Is(err, publisher.ErrFenced) {
		r.fenced = 0
	}
	if errors.Is(err, publisher.ErrFenced) {
		r.fenced++
	}
	if r.fenced < maxFenced {
		return nil
	}
	return &RivalError{Times: r.fenced, Err: err}
}
