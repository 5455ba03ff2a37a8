package relay

import (
	"github.com/jackc/pglogrepl"

	"github.com/onceward/onceward/cdc"
)

// way is how an item of the stream ended.
type way int

// The ways to end, and there is no other.
const (
	wayAcknowledged way = iota // by Kafka, or known committed there
	wayLetter                  // it has a dead letter
	wayWaiting                 // it is written down in onceward.waiting
	waySkipped                 // an operator said so
	wayErased                  // its row is gone from the outbox
	ways
)

// reach is how far the session has come, beside the position: which is all that
// has to be kept of it, because what is held is written down before it ends.
type reach struct {
	// upto: every item of the stream before it has ended.
	upto place
	// release is the number of the last release that was begun, and cursor how
	// far that one has come.
	release int64
	cursor  cursor
}

// cursor is a place in a release: all that its lanes before number lane held has
// ended, and of that lane everything before from.
type cursor struct {
	lane int
	from place
}

func (c cursor) before(d cursor) bool {
	return c.lane < d.lane || c.lane == d.lane && c.from.before(d.from)
}

// covers reports whether a release has come as far as another.
func (r *reach) covers(other reach) bool {
	return r.release > other.release || r.release == other.release && !r.cursor.before(other.cursor)
}

// ledger says what has ended. What the pump deals with, of the stream and of a
// release alike, gets a tag when it is dealt with, and ends once. A mark says how
// far the pump had come; it is reached when everything with an earlier tag has
// ended, so that what the ledger returns is always one moment of the pump: a
// released event and the later ones of its aggregate cannot be confused. It is
// pure; the caller serialises the calls.
type ledger struct {
	*cdc.Progress
	marks   []mark
	reached reach
	ends    [ways]uint64
}

// mark is reached when every tag below before has ended.
type mark struct {
	before uint64
	reach
}

func newLedger(order pglogrepl.LSN, at reach) *ledger {
	return &ledger{Progress: cdc.NewProgress(order), reached: at}
}

// End records that an item has ended, and how.
func (l *ledger) End(tag uint64, how way) error {
	if err := l.Progress.End(tag); err != nil {
		return err
	}
	l.ends[how]++
	l.advance()
	return nil
}

// low is the first tag that has not ended.
func (l *ledger) low() uint64 { return l.Events() - l.InFlight() }

// reachedBy records how far the pump has come, all of which has ended.
func (l *ledger) reachedBy(at reach) { l.marks, l.reached = l.marks[:0], at }

// mark records how far the pump has come now.
func (l *ledger) mark(at reach) {
	if n := len(l.marks); n > 0 && l.marks[n-1].before == l.Events() {
		l.marks[n-1].reach = at // no item in between: one mark serves both
	} else {
		l.marks = append(l.marks, mark{before: l.Events(), reach: at})
	}
	l.advance()
}

func (l *ledger) advance() {
	low := l.low()
	n := 0
	for n < len(l.marks) && l.marks[n].before <= low {
		l.reached = l.marks[n].reach
		n++
	}
	if n > 0 {
		l.marks = append(l.marks[:0], l.marks[n:]...)
	}
}
