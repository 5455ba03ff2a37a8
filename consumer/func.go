package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer/internal/fence"
	"github.com/onceward/onceward/consumer/internal/statement"
)

// FuncHandler handles an event whose effects are not, or not only, in one
// transaction of this database: it calls [Fence] for each effect outside, and
// [Do] for each that is a transaction. They have names inside the event. There is
// no transaction around the handler, and what it does beside Fence and Do happens
// again at every delivery. It must return their errors. A handler that has found
// nothing to do returns [ErrNothingToDo].
type FuncHandler func(ctx context.Context, ev Event) error

// Errors of a [FuncHandler] and of effects.
var (
	// ErrNothingToDo, returned by a FuncHandler, ends an event without an effect.
	ErrNothingToDo = errors.New("the handler has found nothing to do")
	// ErrNoEffect: a FuncHandler returned nil and had called neither Fence nor Do,
	// so that nothing protects what it did.
	ErrNoEffect = errors.New("the handler called neither Fence nor Do; return consumer.ErrNothingToDo when that is what the event asks for")
	// ErrEffectTwice: one delivery made two effects of one name, which are one.
	ErrEffectTwice = fence.ErrTwice
	// ErrContext: Fence or Do, of an event whose FuncHandler runs, had another context.
	ErrContext = errors.New("Fence and Do of an event whose handler runs need the context of that handler, or one made of it, as context.WithoutCancel does")
	// ErrInTx: Fence or Do was called within a transaction that has claimed its
	// event: it would wait for itself. Or within a handler whose events leave no claim, and
	// whose letter would find that of the effect.
	ErrInTx = errors.New("Fence and Do cannot be called within a handler of Router.Tx, Batch, BatchSet or AtLeastOnce, or within a Do or a Commit; use the transaction, or register the handler with Router.Func")
)

// Handle delivers one event to a handler as [Router.Handle] does to one that was
// registered with [Router.Func]. It is for receivers that know no topic and make
// several effects of an event; one effect alone needs only [Fence] or [Do]. What
// was not applied, because it was given up or lies outside its window, is
// [ErrNotApplied]; while another delivery is at it, the error is [ErrInProgress].
func Handle(ctx context.Context, p *Processor, ev Event, fn FuncHandler) (Outcome, error) {
	r := NewRouter(p)
	r.Func(ev.Type, fn)
	outcome, err := r.Handle(ctx, ev)
	switch {
	case err != nil || ev.Source.Topic != "":
	case outcome == InProgress:
		err = ErrInProgress
	default:
		err = notApplied(Claim{Outcome: outcome})
	}
	return outcome, err
}

// outside is one delivery of an event whose effects lie outside: it looks whether
// the event is to be applied, runs the handler, and ends the event.
func (s *steps) outside(ctx context.Context, it *item) {
	settled, err := s.look(ctx, it)
	if settled {
		return
	}
	if err == nil {
		err = s.processor.calls.event(ctx, it)
	}
	if err == nil {
		err = s.endEvent(ctx, it)
	}
	if err != nil {
		s.failed(ctx, it, err)
	}
}

// unclaimed is one delivery of an event that leaves nothing in the database, unless it
// fails.
func (s *steps) unclaimed(ctx context.Context, it *item) {
	if err := s.processor.calls.event(ctx, it); err != nil {
		s.failed(ctx, it, err)
		return
	}
	it.delivery = Delivery{Outcome: Processed}
}

// look judges the event before its handler runs, and settles one that is not to
// be applied.
func (s *steps) look(ctx context.Context, it *item) (settled bool, err error) {
	err = s.inTx(ctx, []*item{it}, func(tx pgx.Tx) error {
		if err := s.processor.letters.lookForParked(ctx, tx, []*item{it}); err != nil {
			return err
		}
		if err := (fences{claimant{s.processor, statement.On(tx)}}).look(ctx, it); err != nil {
			return err
		}
		if it.fresh() && (it.discarded || it.parked && !it.begun) {
			it.ev.accepted = false
			it.heldBack()
		}
		if settled = !it.fresh(); settled {
			it.end, err = it.refuse(s.processor)
		}
		return err
	})
	return settled && err == nil, err
}

// endEvent is the transaction that ends the event: its claim, and its effects,
// which may go after a while.
func (s *steps) endEvent(ctx context.Context, it *item) error {
	var left int64
	err := s.inTx(ctx, []*item{it}, func(tx pgx.Tx) error {
		if err := s.claim(ctx, tx, []*item{it}); err != nil {
			return err
		}
		it.end = ending{outcome: it.claim.Outcome}
		if it.claim.Outcome == DeadLettered {
			return nil // given up meanwhile: a redrive of the letter goes on here
		}
		if it.fresh() || it.claim.Outcome == Duplicate {
			var err error
			left, err = fences{claimant{s.processor, statement.On(tx)}}.endEffects(ctx, it)
			return err
		}
		return &infrastructureError{fmt.Errorf("the event was accepted, and is %s by now: look at the database's clock", it.claim.Outcome)}
	})
	if err == nil && left > 0 {
		s.processor.log.WarnContext(ctx, "effects left to an operator", "event", it.ev.Key.String(), "effects", left, "why", notCalled)
	}
	return err
}

// running is what a handler carries in its context: which event it handles, and
// what its effects leave for the delivery. Safe for concurrent use.
type running struct {
	member  *member
	event   Event
	inTx    bool // its transaction has claimed the event, or it is not to be claimed
	effects fence.Names
}

type deliveryKey struct{}

// within returns the delivery of this very event by this very group that a
// context belongs to; nil for an effect that is an event of its own.
func (m *member) within(ctx context.Context, ev Event, name string) (*running, error) {
	run, ok := ctx.Value(deliveryKey{}).(*running)
	switch {
	case !ok:
		return nil, m.amid(ev, name)
	case run.member.group != m.group:
		return nil, nil //nolint:nilnil // none is an answer
	case run.inTx:
		return nil, ErrInTx
	case run.member.db != m.db:
		return nil, fmt.Errorf("%w: the Processor of the effect has another pool than that of the delivery, so that nothing could end the effect with the event; use one", ErrRegistration)
	case run.event.Key != ev.Key:
		return nil, nil //nolint:nilnil // as above
	}
	return run, run.effects.Begin(name)
}

// amid refuses an effect with the context of no delivery, of an event whose handler runs: it would be taken for that.
func (m *member) amid(ev Event, name string) error {
	v, _ := m.handling.Load(ev.Key)
	run, there := v.(*running)
	if !there {
		return nil
	}
	if run.inTx {
		return ErrInTx
	}
	if err := run.effects.Begin(name); err != nil {
		return err
	}
	return run.finish(name, ErrContext)
}

// finish leaves what became of an effect, and returns it.
func (run *running) finish(name string, err error) error {
	if run != nil {
		run.effects.Finish(name, err)
	}
	return err
}
