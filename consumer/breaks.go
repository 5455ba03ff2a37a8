package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/google/uuid"
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

// maxBroken bounds the events of which breaks are remembered: some are finished by
// other members.
const maxBroken = 10_000

// breaks counts per event how often its transaction broke. A break counts only when
// this process has finished another event since the last one that did: in an outage
// none is. Safe for concurrent use.
type breaks struct {
	mu       sync.Mutex
	of       map[uuid.UUID]broken
	finished uint64 // events
}

type broken struct {
	times int
	at    uint64 // breaks.finished at the last one
	owed  error  // a failure of the handler that is not counted in the database yet
}

// finish is for an event that is finished.
func (b *breaks) finish(id uuid.UUID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.finished++
	delete(b.of, id)
}

// forget begins anew with an event.
func (b *breaks) forget(id uuid.UUID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.of, id)
}

// seen remembers that an event may have broken a transaction, and reports whether it
// may have before.
func (b *breaks) seen(id uuid.UUID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	before, ok := b.of[id]
	b.put(id, before)
	return ok
}

func (b *breaks) put(id uuid.UUID, e broken) {
	if b.of == nil || len(b.of) >= maxBroken {
		b.of = make(map[uuid.UUID]broken)
	}
	b.of[id] = e
}

// count counts a break of the transaction that an event had for itself. What it
// returns is a failure of the handler when there were too many.
func (b *breaks) count(id uuid.UUID, cause error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.of[id]
	counts := e.times == 0 || b.finished > e.at
	if counts {
		e.times, e.at = e.times+1, b.finished
	}
	most, look := maxBreaks, "what makes the server or a pooler end the session"
	if errors.Is(cause, errConflict) {
		most, look = maxConflicts, "with what its statements conflict each time"
	}
	if counts && e.times > most {
		e.owed = &HandlerError{Err: fmt.Errorf("its transaction broke %d times in a row, while other events were applied; find out %s: %w", e.times, look, cause)}
		cause = e.owed
	}
	b.put(id, e)
	return cause
}

// debt returns the failure of an event that is to be counted, nil for none.
func (b *breaks) debt(id uuid.UUID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.of[id].owed
}

// paid says that it is.
func (b *breaks) paid(id uuid.UUID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e, ok := b.of[id]; ok {
		e.owed = nil
		b.of[id] = e
	}
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
			again = r.processor.breaks.seen(it.id) || again
		}
	}
	return again
}

func (r *Router) indebted(items []*item) bool {
	return slices.ContainsFunc(items, func(it *item) bool { return r.processor.breaks.debt(it.id) != nil })
}

// pay counts the failure that an event owes, before its handler runs again: right
// after it the database may have been away, because it had crashed. Over: it was the
// last one, or could not be counted.
func (r *Router) pay(ctx context.Context, it *item) (over bool) {
	cause := r.processor.breaks.debt(it.id)
	if it.redrive != nil {
		it.delivery.Err = cause // opens the letter again
		r.processor.breaks.forget(it.id)
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
	r.processor.breaks.paid(it.id)
	return false
}
