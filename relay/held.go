package relay

import (
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/cdc"
)

// Bounds of the wait between two tries of a lane that is held.
const (
	holdMin = 100 * time.Millisecond
	holdMax = 5 * time.Second
)

// step is one item that has to be dealt with, and where it stands.
type step struct {
	it   *cdc.Item
	at   place  // letter counts those of a retry that are out
	tag  uint64 // in the progress
	size int    // of the item in memory, in bytes

	release *retry    // of a control that has acted
	letter  lane      // of a retry of one letter: what that letter waits behind
	repair  uuid.UUID // the gap that it is of; else zero
}

// lane returns the step's. An edit or a discard of one letter has none: it acts
// at once, whatever is held.
func (s *step) lane() lane {
	switch it := s.it; {
	case it.Kind == cdc.KindControl && it.Control.LetterID != uuid.Nil:
		return s.letter
	case it.Kind == cdc.KindControl:
		return lane{namespace: it.Control.Namespace, aggregateType: it.Control.AggregateType}
	case it.Kind == cdc.KindReplay && it.Replay.Topic != "":
		return lane{topic: it.Replay.Topic}
	default:
		return lane{namespace: it.Row.Namespace, aggregateType: it.Row.AggregateType}
	}
}

// waiting is one lane that is held, with its steps in order.
type waiting struct {
	of    lane
	route string // by which the publisher refuses it, for the operator
	why   string
	steps []step
	wait  time.Duration // before the next try
	next  time.Time     // of a try
}

// lanes holds back what cannot be published for now, in order, so that other
// lanes can go on. Nothing that is held counts as ended. It is pure, and owned by
// the pump's goroutine.
type lanes struct {
	limit int // of bytes; beyond it everything waits
	bytes int
	all   []*waiting // in the order in which they were held
	byKey map[lane]*waiting
}

func newLanes(limit int) *lanes { return &lanes{limit: limit, byKey: make(map[lane]*waiting)} }

// any reports whether some lane is held.
func (l *lanes) any() bool { return len(l.all) > 0 }

// full reports whether everything has to wait.
func (l *lanes) full() bool { return l.bytes > l.limit }

// find returns the lane if it is held.
func (l *lanes) find(of lane) *waiting {
	if len(l.all) == 0 {
		return nil
	}
	return l.byKey[of]
}

// hold makes the lane wait from now on.
func (l *lanes) hold(of lane, now time.Time) *waiting {
	w := &waiting{of: of, wait: holdMin, next: now.Add(holdMin)}
	l.all = append(l.all, w)
	l.byKey[of] = w
	return w
}

// add puts a step behind the others of its lane. The item is copied, because the
// batch that it came with is used again.
func (l *lanes) add(w *waiting, s step) {
	it := *s.it
	s.it = &it
	w.steps = append(w.steps, s)
	l.bytes += s.size
}

// pop takes the first step away: it was dealt with.
func (l *lanes) pop(w *waiting) {
	l.bytes -= w.steps[0].size
	w.steps[0] = step{} // the row goes now, not with the slice
	w.steps = w.steps[1:]
}

// release forgets a lane that holds no step any more.
func (l *lanes) release(w *waiting) {
	delete(l.byKey, w.of)
	l.all = slices.DeleteFunc(l.all, func(other *waiting) bool { return other == w })
}

// refused doubles the wait of a lane whose first step was refused again.
func (w *waiting) refused(now time.Time) {
	w.wait = min(2*w.wait, holdMax)
	w.next = now.Add(w.wait)
}

// due returns the first lane whose next try has come; nil when there is none.
func (l *lanes) due(now time.Time) *waiting {
	for _, w := range l.all {
		if !now.Before(w.next) {
			return w
		}
	}
	return nil
}

// wake returns when the next try of a lane is due; zero when none is held.
func (l *lanes) wake() (at time.Time) {
	for _, w := range l.all {
		if at.IsZero() || w.next.Before(at) {
			at = w.next
		}
	}
	return at
}

// heads returns the place of each lane's first step; nil when none is held.
func (l *lanes) heads() map[lane]place {
	if len(l.all) == 0 {
		return nil
	}
	heads := make(map[lane]place, len(l.all))
	for _, w := range l.all {
		if len(w.steps) > 0 {
			heads[w.of] = w.steps[0].at
		}
	}
	return heads
}

// tags returns those of everything that waits.
func (l *lanes) tags() (tags []uint64) {
	for _, w := range l.all {
		for _, s := range w.steps {
			tags = append(tags, s.tag)
		}
	}
	return tags
}
