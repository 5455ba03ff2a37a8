package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// errBroken marks that a delivery's transaction broke while the handler ran. Mostly
// that is an outage. But a handler whose statements make the server end the session
// breaks it each time, and would be tried again for ever.
var errBroken = errors.New("the transaction broke while the handler ran")

// errConflict is the errBroken of one that gave way to another transaction: a deadlock,
// or a failed serialization, which pass when it is tried again.
var errConflict = fmt.Errorf("%w, and gave way to another one", errBroken)

// How often in a row that may happen to an event, while others are finished in between,
// before it counts as a failure of its handler.
const (
	maxBreaks    = 5
	maxConflicts = 10
)

// brokeAlone counts a break of the transaction that an event had for itself. What it
// returns is a failure of the handler when there were too many.
func (p *Processor) brokeAlone(it *item, cause error) error {
	most, look := maxBreaks, "what makes the server or a pooler end the session"
	if errors.Is(cause, errConflict) {
		most, look = maxConflicts, "with what its statements conflict each time"
	}
	if owed := p.breaks.Count(it.id, most, func(times int) error {
		return &HandlerError{Err: fmt.Errorf("its transaction broke %d times in a row, while other events were applied; find out %s: %w", times, look, cause)}
	}); owed != nil {
		return owed
	}
	return cause
}

// broke reports whether the handlers may have broken the transaction.
func broke(ctx context.Context, err error) bool {
	return ctx.Err() == nil && (errors.Is(err, errBroken) || errors.Is(err, ErrCommitUnknown))
}

// brokeAgain reports whether events of a transaction that broke are to have one each:
// one of those that may be to blame may have been before.
func (r *Router) brokeAgain(ctx context.Context, items []*item, err error) (again bool) {
	if !broke(ctx, err) {
		return false
	}
	for _, it := range items {
		if it.broke || errors.Is(err, ErrCommitUnknown) {
			again = r.processor.breaks.Seen(it.id) || again
		}
	}
	return again
}

func (r *Router) indebted(items []*item) bool {
	return slices.ContainsFunc(items, func(it *item) bool { return r.processor.breaks.Debt(it.id) != nil })
}

// pay counts the failure that an event owes, before its handler runs again: right
// after it the database may have been away, because it had crashed. Over: it was the
// last one, or could not be counted.
func (r *Router) pay(ctx context.Context, it *item) (over bool) {
	cause := r.processor.breaks.Debt(it.id)
	if it.redrive != nil {
		it.delivery.Err = cause // opens the letter again
		r.processor.breaks.Forget(it.id)
		return true
	}
	if err := r.count(ctx, it, cause); err != nil {
		it.delivery.Err = err
		return true
	}
	if it.delivery.Err == nil {
		return true
	}
	it.delivery = Delivery{}
	r.processor.breaks.Paid(it.id)
	return false
}
