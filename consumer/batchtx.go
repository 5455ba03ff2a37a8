package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/consumerdb"
)

// maxSavepoints is how many events share a transaction in which each has a
// savepoint: PostgreSQL keeps 64 subtransactions of a session in shared memory,
// and becomes slow for everybody beyond.
const maxSavepoints = 50

// item is one event of a batch.
type item struct {
	ev          Event
	id          uuid.UUID // of the event, or of its replay
	fingerprint Fingerprint
	handler     *batchHandler
	delivery    *Delivery
	err         error

	// Of the transaction under way; it counts when that commits.
	plan    plan
	fresh   bool // claimed by it, and its handler has to run
	outcome Outcome
	letter  *letter
}

// batch is one call of HandleBatch.
type batch struct {
	router *Router
	items  []*item
}

// inTx runs one transaction over the items, and makes their outcomes count when
// it was committed. work says how many of them are finished.
func (b *batch) inTx(ctx context.Context, items []*item, work func(tx pgx.Tx) (int, error)) (finished int, err error) {
	for _, it := range items {
		it.plan, it.fresh, it.outcome, it.letter = plan{}, false, 0, nil
	}
	tx, err := b.router.steps.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer rollback(ctx, tx)
	finished, err = work(tx)
	if err == nil {
		err = b.router.steps.commit(ctx, tx)
	}
	if err != nil {
		return 0, judge(ctx, tx, err)
	}
	for _, it := range items[:finished] {
		it.delivery.Outcome = it.outcome
		if it.letter != nil {
			b.router.announce(ctx, *it.letter)
		}
	}
	return finished, nil
}

// optimistic is the transaction without savepoints: all or nothing.
func (b *batch) optimistic(ctx context.Context, items []*item) error {
	_, err := b.inTx(ctx, items, func(tx pgx.Tx) (int, error) {
		if err := b.claim(ctx, tx, items); err != nil {
			return 0, err
		}
		for first := 0; first < len(items); {
			next := first + 1
			if it := items[first]; it.fresh {
				next = runOf(items, first)
				if err := b.apply(ctx, tx, items[first:next]); err != nil {
					return 0, err
				}
			} else if err := b.refuse(ctx, tx, it); err != nil {
				return 0, err
			}
			first = next
		}
		return len(items), nil
	})
	return err
}

// runOf returns the end of the run of fresh items that one call handles: more
// than one only for a set handler.
func runOf(items []*item, first int) int {
	next := first + 1
	for items[first].handler.set != nil && next < len(items) && items[next].fresh && items[next].handler == items[first].handler {
		next++
	}
	return next
}

// apply calls the handler of fresh items that belong together.
func (b *batch) apply(ctx context.Context, tx pgx.Tx, items []*item) error {
	h := items[0].handler
	handler := TxHandler(h.single)
	if h.set != nil {
		evs := make([]Event, len(items))
		for i, it := range items {
			evs[i] = it.event()
		}
		handler = func(ctx context.Context, tx pgx.Tx, _ Event) error { return h.set(ctx, tx, evs) }
	}
	if err := b.router.steps.apply(ctx, handler, tx, items[0].event()); err != nil {
		return err
	}
	for _, it := range items {
		it.outcome = Processed
	}
	return nil
}

// isolating is the transaction with a savepoint around each event. It ends
// before the first event that is to be tried again; what is before that is
// committed. The claims of that event and of all after it are taken back: a
// claim left behind would be an event lost.
func (b *batch) isolating(ctx context.Context, items []*item) (finished int, err error) {
	return b.inTx(ctx, items, func(tx pgx.Tx) (int, error) {
		if err := b.claim(ctx, tx, items); err != nil {
			return 0, err
		}
		for k, it := range items {
			if !it.fresh {
				if err := b.refuse(ctx, tx, it); err != nil {
					return 0, err
				}
				continue
			}
			again, err := b.try(ctx, tx, it)
			if err != nil {
				return 0, err
			}
			if again != nil {
				it.delivery.Err = again
				return k, b.unclaim(ctx, tx, items[k:])
			}
		}
		return len(items), nil
	})
}

// try runs one handler within a savepoint. Again is the handler's failure when
// the event is to be tried another time.
func (b *batch) try(ctx context.Context, tx pgx.Tx, it *item) (again, err error) {
	savepoint, err := tx.Begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("savepoint: %w", err)
	}
	cause := b.apply(ctx, savepoint, []*item{it})
	if cause == nil {
		if err := savepoint.Commit(ctx); err != nil {
			return nil, fmt.Errorf("release savepoint: %w", err)
		}
		return nil, nil
	}
	if cause = judge(ctx, tx, cause); IsInfrastructure(cause) {
		return nil, cause
	}
	if errors.Is(cause, ErrTxEnded) {
		return nil, errAlone // the transaction of its neighbours is over too
	}
	if err := savepoint.Rollback(ctx); err != nil {
		return nil, fmt.Errorf("roll back to savepoint: %w", err)
	}
	return b.failed(ctx, tx, it, cause)
}

// errAlone: the events cannot share a transaction, because one of them spoils it
// for the others.
var errAlone = errors.New("the events cannot share a transaction")

// failed counts the failure of one handler, in the transaction that its
// neighbours commit, and gives the event up when that was its last attempt.
func (b *batch) failed(ctx context.Context, tx pgx.Tx, it *item, cause error) (again, err error) {
	if it.ev.Source.Topic == "" {
		return cause, nil // there is no place for a letter
	}
	q := consumerdb.New(tx)
	attempts, last, err := b.router.countAttempt(ctx, q, it.ev, cause)
	if err != nil {
		return nil, err
	}
	if !last {
		return cause, nil
	}
	if err := b.router.markDead(ctx, q, it.plan.ids); err != nil {
		return nil, err
	}
	it.outcome = DeadLettered
	return nil, b.bury(ctx, tx, it, letter{record: it.ev.record(), event: it.ev, reason: reasonHandler, cause: cause, attempts: attempts})
}

func (b *batch) bury(ctx context.Context, tx pgx.Tx, it *item, l letter) error {
	written, err := b.router.write(ctx, tx, l)
	if written {
		it.letter = &l
	}
	return err
}

// refuse settles an item that is not fresh. One with another's key, or outside
// its window, becomes a dead letter; the former is an error when it has no place
// for one.
func (b *batch) refuse(ctx context.Context, tx pgx.Tx, it *item) error {
	switch it.outcome {
	case Mismatch:
	case Replay, FromFuture:
		l, ok := b.router.letterOutside(it.ev, Claim{Outcome: it.outcome, Late: it.plan.late})
		if !ok {
			return nil
		}
		it.outcome = DeadLettered
		return b.bury(ctx, tx, it, l)
	default:
		return nil
	}
	var mismatch *MismatchError
	if !errors.As(it.err, &mismatch) || it.ev.Source.Topic == "" {
		it.delivery.Err = it.err
		return nil
	}
	it.outcome = DeadLettered
	return b.bury(ctx, tx, it, letter{record: it.ev.record(), event: it.ev, reason: reasonMismatch, cause: mismatch})
}

// unclaim takes the claims of this transaction back.
func (b *batch) unclaim(ctx context.Context, tx pgx.Tx, items []*item) error {
	var ids []uuid.UUID
	for _, it := range items {
		if it.fresh {
			ids = append(ids, it.plan.ids...)
		}
	}
	return b.delete(ctx, tx, ids)
}

func (b *batch) delete(ctx context.Context, tx pgx.Tx, ids []uuid.UUID) error {
	err := consumerdb.New(tx).DeleteClaims(ctx, consumerdb.DeleteClaimsParams{ConsumerGroup: b.router.Group(), EventIds: ids})
	if err != nil {
		return fmt.Errorf("take claims back: %w", err)
	}
	return nil
}
