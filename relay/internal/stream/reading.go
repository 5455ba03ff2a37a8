package stream

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/fault"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/relay/internal/snapshot"
)

// reading is how far the pump has come in the stream, in what waits and in the gaps,
// and what of the batch in hand it has not dealt with: all that a checkpoint says.
type reading struct {
	*progress
	rows     rows
	covered  snapshot.Visible   // what the stream leaves out: it was published from the table, or is of a gap
	controls map[uuid.UUID]bool // that wait since before this session
	counted  func() int64       // writes of letters and of what waits, ever made

	began    ledger.Checkpoint // what had ended when the session began
	at       ledger.Place      // of the next item to be read
	next     ledger.Place      // everything before it was dealt with
	release  int64             // number of the last
	cursor   ledger.Cursor     // how far it has come
	repaired ledger.Repair     // how far the repair of a gap has come

	steps  []step   // of the batch in hand
	left   []step   // of them, those that were not dealt with
	inHand []uint64 // the tag of the item of a release that is being handed over, or none
}

// read records the whole batch in the progress, under one lock, before any of it
// is handed over, and leaves in steps what has to be dealt with: all that had
// not ended when the session began.
func (r *reading) read(batch []cdc.Item) error {
	r.steps = r.steps[:0]
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range batch {
		it := &batch[i]
		if it.Row == nil && it.Control == nil {
			if err := r.note(it); err != nil {
				return fmt.Errorf("read stream: %w", err)
			}
			continue
		}
		if it.Commit != r.at.Commit {
			r.at = ledger.Place{Commit: it.Commit}
		}
		r.unseen.Add(it)
		s := step{it: it, at: r.at}
		r.at.Ordinal++
		if r.hadEnded(&s) {
			continue
		}
		r.ledger.Open(it.CommitTime)
		s.tag = r.ledger.Read()
		r.steps = append(r.steps, s)
		if fault.Is(fault.ConfirmEarly) {
			_ = r.ledger.End(s.tag, ledger.Acknowledged)
		}
	}
	r.left = r.steps
	r.owing += uint64(len(r.steps))
	r.counts.Read(len(r.steps))
	return nil
}

// hadEnded applies the resume rule. A control acts again until its transaction
// has ended, unless it waits: its letters were opened when the session began, and
// those that are out already are left out then.
func (r *reading) hadEnded(s *step) bool {
	switch {
	case s.at.Commit < r.began.Order:
		return true
	case s.it.Kind == cdc.KindControl && r.controls[s.it.Control.ID]:
		return true
	case !s.at.Before(r.began.UpTo):
		return false
	case s.it.Kind != cdc.KindControl:
		return true
	}
	s.again = true
	return false
}

// leavesOut reports whether an event is not the stream's to publish: it is of a gap,
// or was published from the table. A row whose tx_id is not its own is judged by
// nothing but its letter.
func (r *reading) leavesOut(it *cdc.Item) bool {
	return it.Kind == cdc.KindEvent && it.Bad == nil && r.covered.Sees(it.Row.TxID)
}

// open gives an item a tag that does not come from the stream.
func (r *reading) open() (tag uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.owing++
	return r.ledger.Read()
}

// passed notes that everything before a place in the middle of a retry was dealt
// with.
func (r *reading) passed(at ledger.Place, released bool) {
	switch {
	case released:
		r.cursor.From = at
	case r.next.Before(at):
		r.next = at
	}
}

// mark writes down how far the pump has come. What is left of the batch in hand has
// tags already, and so has the item of a release that is being handed over, which may
// wait for room or for an operator: where nothing else owes its end, that is reached.
func (r *reading) mark() {
	at, letters := r.reach(), r.counted()
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := uint64(len(r.left) + len(r.inHand)); n > 0 && r.owing == n && r.ledger.Low() == r.firstLeft() {
		r.ledger.EndedTo(at)
	} else {
		r.ledger.CameTo(at)
	}
	r.written = letters
}

// firstLeft is the first tag of what was not dealt with: the batch was read before the
// item in hand.
func (r *reading) firstLeft() uint64 {
	if len(r.left) > 0 {
		return r.left[0].tag
	}
	return r.inHand[0]
}

// reach is how far the pump has come.
func (r *reading) reach() ledger.Reach {
	at := ledger.Reach{UpTo: r.next, Release: r.release, Cursor: r.cursor}
	if r.next.Before(r.began.UpTo) {
		at.UpTo = r.began.UpTo // what had ended there has ended
	}
	return at
}

// cut is what has ended once everything that was handed over has: order, reach,
// repair and letters.
func (r *reading) cut() ledger.Checkpoint {
	return ledger.Checkpoint{Order: r.ledger.Position(), Reach: r.reach(), Repair: r.repaired, Letters: r.counted()}
}
