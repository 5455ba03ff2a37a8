package letters

import (
	"fmt"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/publisher"
)

// parkedSet is the parked aggregates, each with the oldest letter that holds it,
// and how many there are of each kind. It is pure.
type parkedSet struct {
	oldest map[aggregate]holder
	kinds  map[ledger.Lane]int // by namespace and aggregate type
}

func newParkedSet() parkedSet {
	return parkedSet{oldest: make(map[aggregate]holder), kinds: make(map[ledger.Lane]int)}
}

func kindOf(a aggregate) ledger.Lane {
	return ledger.Lane{Namespace: a.namespace, AggregateType: a.kind}
}

// of is how many aggregates of this one's kind are parked.
func (s parkedSet) of(a aggregate) int { return s.kinds[kindOf(a)] }

// hold parks an aggregate, or notes that an older letter holds it.
func (s parkedSet) hold(a aggregate, h holder) {
	if known, ok := s.oldest[a]; !ok || h.before(known.commit, known.seq) {
		s.set(a, h)
	}
}

// set says which letter holds an aggregate now.
func (s parkedSet) set(a aggregate, h holder) {
	if _, parked := s.oldest[a]; !parked {
		s.kinds[kindOf(a)]++
	}
	s.oldest[a] = h
}

// free ends the parking of an aggregate.
func (s parkedSet) free(a aggregate) {
	if _, parked := s.oldest[a]; !parked {
		return
	}
	delete(s.oldest, a)
	if s.kinds[kindOf(a)]--; s.kinds[kindOf(a)] == 0 {
		delete(s.kinds, kindOf(a))
	}
}

// overLimit: one more aggregate of a kind than may be parked at a time met an
// event that cannot be published. Nothing was written.
func overLimit(a aggregate, limit int, slot string, dead *Dead) *publisher.RouteError {
	return &publisher.RouteError{
		Route: kindOf(a).String(),
		Reason: fmt.Sprintf("%d aggregates of %s/%s are parked already, which is the limit (max_parked_aggregates), and event %s:%s cannot be published either (%s)",
			limit, label.Short(a.namespace), label.Short(a.kind), label.Short(a.namespace), dead.ID(), dead.Cause),
		Cure: fmt.Sprintf("find what they have in common (`outboxctl dead list`) and mend it; then give some up by `outboxctl dead discard KEY --reason \"…\"`, which acts at once, "+
			"or this event by `outboxctl skip %s --slot %s --reason \"…\"`, or raise the limit, so that what is behind it in the stream is reached, "+
			"a retry of one of these aggregates as well",
			label.Argument(a.namespace, dead.ID()), slot),
	}
}
