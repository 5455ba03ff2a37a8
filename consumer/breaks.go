package consumer

import (
	"context"
)

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
