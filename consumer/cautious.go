package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/consumerdb"
)

// cameBackTimeout bounds how long it may take to say that the handling of an event
// came back, which must not depend on the delivery's own context.
const cameBackTimeout = 5 * time.Second

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
	starts, err := r.processor.countStart(ctx, it.id)
	if err != nil {
		return 0, fmt.Errorf("handle %s %s: %w", ev.Type, ev.Key, err)
	}
	if limit := r.processor.retry.MaxAttempts; limit >= 0 && int(starts) > limit {
		return r.crashed(ctx, it, starts-1)
	}
	defer r.processor.endStart(ctx, it.id, starts)
	return r.Handle(ctx, ev)
}

// countStart returns how often the handling of an event was begun and has not come
// back, this time included.
func (p *Processor) countStart(ctx context.Context, id uuid.UUID) (starts int32, err error) {
	if counted, ok := p.cameBack.LoadAndDelete(id); ok { // and could not be taken back then
		starts, _ = counted.(int32)
		return starts, nil
	}
	starts, err = consumerdb.New(p.db).CountStart(ctx, consumerdb.CountStartParams{
		EventID: id, ConsumerGroup: p.group, Keep: interval(attemptsKept), LastError: "the process ended while the event was being handled",
	})
	if err != nil {
		return 0, &infrastructureError{fmt.Errorf("count the start of a handler: %w", err)}
	}
	return starts, nil
}

// endStart takes a start back. One that cannot be taken back is remembered, so that
// an outage of the database does not look like a crash.
func (p *Processor) endStart(ctx context.Context, id uuid.UUID, starts int32) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cameBackTimeout)
	defer cancel()
	if err := consumerdb.New(p.db).CameBack(ctx, consumerdb.CameBackParams{EventID: id, ConsumerGroup: p.group}); err != nil {
		p.cameBack.Store(id, starts)
		p.log.WarnContext(ctx, "that the handling of an event came back could not be written down", "event", id, "error", err)
	}
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
			if err := r.giveUp(ctx, tx, it, cause, times); err != nil {
				return 0, err
			}
			if it.end.dead {
				it.end.letter.reason = reasonCrash
			}
			return 1, nil
		})
	}
	if err != nil {
		return 0, fmt.Errorf("give up %s %s: %w", it.ev.Type, it.ev.Key, err)
	}
	return it.delivery.Outcome, it.delivery.Err
}
