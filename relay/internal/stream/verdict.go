package stream

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/letters"
)

// verdict is what becomes of a step at its turn.
type verdict int

const (
	publish  verdict = iota // it goes to Kafka
	leave                   // nothing is left to be done about it
	hold                    // it waits, with its lane
	carryOut                // it is a control, which acts
	skip                    // an operator gave it up
	follow                  // it goes behind the letters of its aggregate
	letter                  // it can never become a record, and is kept
	halt                    // the same, and an operator decides
)

// facts are what a verdict depends on.
type facts struct {
	control bool
	replay  bool // of an event
	ended   bool // it has a letter from a session before
	covered bool // it was published from the table, or is of a gap
	held    bool // its lane is
	skipped bool // an operator wants it to end unpublished
	parked  bool // an older letter holds its aggregate
	unfit   bool // it is no record: its row is bad, or Kafka refuses it for what it is
	halts   bool // the policy of its route, for those
	paused  bool // an operator holds up its route
}

// route is the one order of precedence. It is pure. An event passes its route's lane
// first and the park of its aggregate second, so that it keeps its place in both; what
// an operator gave up ends before anything else is asked of it.
func route(f facts) verdict {
	switch {
	case f.ended || f.covered:
		return leave
	case f.held:
		return hold
	case f.control:
		return carryOut
	case f.skipped:
		return skip
	case f.parked:
		return follow
	case f.unfit && f.halts && !f.replay:
		return halt
	case f.unfit:
		return letter
	case f.paused:
		return hold
	}
	return publish
}

// decision is a step at its turn: the facts, and what they come from.
type decision struct {
	*step
	facts
	lane   *heldLane             // that is held
	why    *publisher.RouteError // it is paused
	class  string                // of its letter
	policy string                // of its route, likewise
	cause  error                 // it is unfit
}

// atTurn gathers what is known of a step. One that is released, or of a gap that is
// repaired, comes from the table: it has no letter, and is the table's to publish.
func (p *Pump) atTurn(ctx context.Context, s *step) (t decision, err error) {
	t.step, t.control = s, s.it.Kind == cdc.KindControl
	if !s.released && !s.again && p.held.lanes.any() {
		t.lane = p.held.lanes.find(s.lane())
		t.held = t.lane != nil
	}
	if t.control {
		return t, nil
	}
	id := s.id()
	if !s.released && !s.repairing {
		t.covered = p.reading.leavesOut(s.it)
		if t.ended, err = p.letters.store.Ended(ctx, id, s.at.Commit); err != nil {
			return t, err
		}
	}
	t.replay = s.it.Replay != nil
	t.skipped = p.Commands().Skips(id)
	t.parked = !t.replay && p.letters.store.Parked(s.it.Row, s.at.Commit)
	if why, known := p.letters.refused[id]; known {
		p.noRecord(&t, letters.ClassRecord, errors.New(why))
	}
	if s.it.Bad != nil {
		p.noRecord(&t, letters.ClassBadRow, s.it.Bad)
	}
	if !t.unfit && len(p.Commands().Routes) > 0 {
		t.why = p.pausedRoute(p.event(s))
		t.paused = t.why != nil
	}
	return t, nil
}

// noRecord notes that the step can never become a record.
func (p *Pump) noRecord(t *decision, class string, cause error) {
	t.unfit, t.class, t.cause, t.policy = true, class, cause, p.routing.policy(t.it.Row)
	t.halts = t.policy == PolicyHalt
}

// deal has a step done, or lets it wait with its lane.
func (p *Pump) deal(ctx context.Context, s *step) error {
	if c := s.it.Control; c != nil && c.LetterID != uuid.Nil && c.Action == cdc.ActionRetry {
		if err := p.letters.findLane(ctx, s); err != nil {
			return err
		}
	}
	err := p.deliver(ctx, s)
	if err == nil {
		return nil
	}
	var route *publisher.RouteError
	if errors.As(err, &route) {
		return p.held.hold(ctx, s, route)
	}
	return err
}

// deliver does what the verdict on a step is. After a [publisher.RouteError] it is to
// be called with the step again.
func (p *Pump) deliver(ctx context.Context, s *step) error {
	t, err := p.atTurn(ctx, s)
	if err != nil {
		return err
	}
	for again := true; again && err == nil; {
		again, err = p.act(ctx, &t)
	}
	if errors.Is(err, publisher.ErrPartitions) {
		return p.haltForGood(ctx, err)
	}
	return err
}

// act does what the verdict is now. More may be known of the step afterwards, and then
// there is another: an operator took a command back, or Kafka refused the record.
func (p *Pump) act(ctx context.Context, t *decision) (again bool, err error) {
	switch route(t.facts) {
	case leave:
		return false, p.passOver(t)
	case hold:
		if t.lane == nil {
			return false, t.why
		}
		return false, p.held.queue(ctx, t.lane, t.step)
	case carryOut:
		return false, p.carryOut(ctx, t.step)
	case skip:
		done, err := p.letters.skip(ctx, t.step, "")
		t.skipped = false
		return !done, err
	case follow:
		return false, p.letters.follow(ctx, t.step)
	case halt:
		return false, p.halt(ctx, t)
	case letter:
		return false, p.letters.poison(ctx, t)
	default:
		return p.publish(ctx, t)
	}
}

// publish hands the step over. A record that Kafka can never take is unfit.
func (p *Pump) publish(ctx context.Context, t *decision) (again bool, err error) {
	err = p.hand(ctx, p.event(t.step), t.it.CommitTime)
	switch {
	case err == nil:
		return false, p.mode.handed(t.step)
	case errors.Is(err, publisher.ErrRecord):
		p.noRecord(t, letters.ClassRecord, err)
		return true, nil
	}
	return false, err
}

// passOver ends a step about which nothing is left to be done.
func (p *Pump) passOver(t *decision) error {
	if t.ended {
		p.counts.Skipped(skippedByLetter)
		return p.end(t.tag, ledger.Letter)
	}
	p.counts.Skipped(skippedByGap)
	return p.end(t.tag, ledger.Skipped)
}

// carryOut lets a control act, and publishes what it releases.
func (p *Pump) carryOut(ctx context.Context, s *step) error {
	if s.release == nil {
		released, err := p.letters.apply(ctx, s)
		if err != nil {
			return err
		}
		if released == nil {
			return p.end(s.tag, ledger.Acknowledged)
		}
		s.release = &retry{p: p, pages: released, from: s.at.Letter}
	}
	return s.release.run(ctx, s)
}
