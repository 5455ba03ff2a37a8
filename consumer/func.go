package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// FuncHandler handles an event whose effect is not, or not only, in this
// database: it calls [Fence] for each effect outside, or [Do]. There is no
// transaction around it, and what it does beside Fence and Do happens again at
// every delivery. It must return their errors.
type FuncHandler func(ctx context.Context, ev Event) error

// Func registers the handler of an event type whose effects lie outside the
// database. The delivery is [Processed] when some Fence or Do within it made
// its effect or none was called, [Duplicate] when all of them knew the event,
// [InProgress] while another attempt holds one of them. Registration as in
// [Router.Tx].
func (r *Router) Func(eventType string, handler FuncHandler) {
	if handler == nil {
		r.fail(eventType, "the handler is nil")
		return
	}
	if r.free(eventType) && r.classed(eventType) {
		r.funcs[eventType] = handler
	}
}

// callFunc is one delivery: it runs the handler and keeps what can never be
// applied as a dead letter.
func (r *Router) callFunc(ctx context.Context, handler FuncHandler, ev Event) (Outcome, error) {
	outcome, n, err := invoke(ctx, handler, ev)
	var mismatch *MismatchError
	switch {
	case errors.As(err, &mismatch):
		return r.keepMismatch(ctx, ev, mismatch)
	case err == nil && n.outside != nil:
		return r.keepOutside(ctx, *n.outside)
	}
	return outcome, err
}

// invoke runs the handler and judges by its error and by what Fence and Do have
// noted: an error of theirs counts even when the handler hides it, for to
// acknowledge then would lose the effect.
func invoke(ctx context.Context, handler FuncHandler, ev Event) (Outcome, *notes, error) {
	n := new(notes)
	err := recovered(func() error { return handler(context.WithValue(ctx, notesKey{}, n), ev) })
	outcome, hidden := n.verdict()
	if err == nil {
		err = hidden
	}
	var mismatch *MismatchError
	switch {
	case errors.Is(err, ErrInProgress):
		return InProgress, n, nil
	case errors.As(err, &mismatch):
		return 0, n, mismatch
	case err == nil && ctx.Err() != nil:
		return 0, n, &infrastructureError{fmt.Errorf("returned after its context had ended: %w", ctx.Err())}
	case err == nil:
		return outcome, n, nil
	case IsInfrastructure(err) || ctx.Err() != nil:
		return 0, n, &infrastructureError{err}
	}
	return 0, n, &HandlerError{Err: err}
}

// keepMismatch writes the dead letter of a mismatch in a transaction of its own.
func (r *Router) keepMismatch(ctx context.Context, ev Event, cause *MismatchError) (Outcome, error) {
	tx, err := r.steps.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer rollback(ctx, tx)
	outcome, err := r.mismatch(ctx, tx, ev, cause)
	return outcome, judge(ctx, tx, err)
}

// outsideNote is an event that Fence or Do refused because of its time.
type outsideNote struct {
	event Event
	claim Claim
}

// keepOutside writes the dead letter of an event outside its window in a
// transaction of its own.
func (r *Router) keepOutside(ctx context.Context, n outsideNote) (Outcome, error) {
	tx, err := r.steps.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer rollback(ctx, tx)
	outcome, err := r.outside(ctx, tx, n.event, n.claim)
	return outcome, judge(ctx, tx, err)
}

// notes is what Fence and Do leave for the router, through the context.
type notes struct {
	mu         sync.Mutex
	processed  bool
	duplicates bool
	dead       bool
	outside    *outsideNote
	err        error // the first
}

type notesKey struct{}

func (n *notes) verdict() (Outcome, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.dead:
		return DeadLettered, n.err
	case n.outside != nil:
		return n.outside.claim.Outcome, n.err
	case n.duplicates && !n.processed:
		return Duplicate, n.err
	}
	return Processed, n.err
}

func noteOutcome(ctx context.Context, ev Event, o Outcome, late bool) {
	if n, ok := ctx.Value(notesKey{}).(*notes); ok {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.processed = n.processed || o == Processed
		n.duplicates = n.duplicates || o == Duplicate
		n.dead = n.dead || o == DeadLettered
		if o == Replay || o == FromFuture {
			n.outside = &outsideNote{ev, Claim{Outcome: o, Late: late}}
		}
	}
}

// note leaves the error of a Fence or a Do and returns it.
func note(ctx context.Context, err error) error {
	if n, ok := ctx.Value(notesKey{}).(*notes); ok {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.err == nil {
			n.err = err
		}
	}
	return err
}
