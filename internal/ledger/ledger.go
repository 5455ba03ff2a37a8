package ledger

import (
	"github.com/jackc/pglogrepl"
)

// Way is how an item of the stream ended.
type Way int

// The ways to end, and there is no other.
const (
	Acknowledged Way = iota // by Kafka, or known committed there
	Letter                  // it has a dead letter
	Waiting                 // it is written down in onceward.waiting
	Skipped                 // an operator said so
	Erased                  // its row is gone from the outbox
	Ways
)

// Reach is how far the session has come, beside the position: which is all that
// has to be kept of it, because what is held is written down before it ends.
type Reach struct {
	// UpTo: every item of the stream before it has ended.
	UpTo Place
	// Release is the number of the last release that was begun, and cursor how
	// far that one has come.
	Release int64
	Cursor  Cursor
}

// Cursor is a place in a release: all that its lanes before number lane held has
// ended, and of that lane everything before from.
type Cursor struct {
	Lane int
	From Place
}

// Before reports whether a release at c has come less far than one at d.
func (c Cursor) Before(d Cursor) bool {
	return c.Lane < d.Lane || c.Lane == d.Lane && c.From.Before(d.From)
}

// covers reports whether a release has come as far as another.
func (r *Reach) covers(other Reach) bool {
	return r.Release > other.Release || r.Release == other.Release && !r.Cursor.Before(other.Cursor)
}

// Ledger says what has ended. What the pump deals with, of the stream and of a
// release alike, gets a tag when it is dealt with, and ends once. A mark says how
// far the pump had come; it is reached when everything with an earlier tag has
// ended, so that what the ledger returns is always one moment of the pump: a
// released event and the later ones of its aggregate cannot be confused. It is
// pure; the caller serialises the calls.
type Ledger struct {
	*Progress
	ends [Ways]uint64
}

// New returns the ledger of a session that starts at a position, where a release and
// the stream have come as far as at.
func New(order pglogrepl.LSN, at Reach) *Ledger {
	l := &Ledger{Progress: NewProgress(order)}
	l.reached.reach = at
	return l
}

// End records that an item has ended, and how.
func (l *Ledger) End(tag uint64, how Way) error {
	if err := l.Progress.End(tag); err != nil {
		return err
	}
	l.ends[how]++
	return nil
}

// Ends returns how many items have ended in each way.
func (l *Ledger) Ends() [Ways]uint64 { return l.ends }
