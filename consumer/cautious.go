package consumer

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/consumerdb"
)

// HandleCautiously is [Router.HandleRecord] for a record that may be what has killed
// a process: that the handling of its event begins is counted in a transaction of
// its own, before it does, and taken back when it has ended, however. An event
// whose handling has not come back Retry.MaxAttempts times becomes a dead letter
// with the reason "crash". Nothing else may be handled meanwhile that could be to
// blame for a crash.
func (r *Router) HandleCautiously(ctx context.Context, rec Record) (Outcome, error) {
	ev, err := r.processor.parse(rec)
	h := r.find(ev.Type)
	if err != nil || r.err != nil || h == nil || h.ignored || ev.Source.Topic == "" || ev.validate() != nil {
		return r.HandleRecord(ctx, rec) // no handler gets it
	}
	it := r.processor.newItem(ev)
	it.handler = h
	starts, may, err := r.processor.attempts.start(ctx, it.id)
	if err == nil && !may {
		var left consumerdb.StartsLeftRow
		if left, err = r.processor.attempts.left(ctx, it.id); err == nil {
			return r.crashed(ctx, it, left.Starts)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("handle %s %s: %w", ev.Type, ev.Key, err)
	}
	defer r.processor.attempts.end(ctx, it.id, starts)
	return r.Handle(ctx, ev)
}

// crashed gives up an event whose handling has not come back so many times.
func (r *Router) crashed(ctx context.Context, it *item, times int32) (Outcome, error) {
	cause := fmt.Errorf("the process ended %d times while this event, and nothing else of its partition, was being handled; "+
		"find out what the handler does with it, then redrive the letter, or discard it", times)
	settled, err := false, error(nil)
	if it.handler.fn != nil {
		settled, err = r.look(ctx, it)
	}
	if err == nil && !settled {
		_, err = r.inTx(ctx, []*item{it}, func(tx pgx.Tx) (int, error) {
			if err := r.giveUp(ctx, tx, it, givenUp(it, reasonCrash, cause, times)); err != nil {
				return 0, err
			}
			return 1, r.processor.attempts.forget(ctx, tx, it.id, times)
		})
	}
	if err != nil {
		return 0, fmt.Errorf("give up %s %s: %w", it.ev.Type, it.ev.Key, err)
	}
	return it.delivery.Outcome, it.delivery.Err
}
