package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/consumerdb"
)

// cameBackTimeout bounds how long it may take to say that the handling of an event
// came back, which must not depend on the delivery's own context.
const cameBackTimeout = 5 * time.Second

// startSlack is what a redrive may take beside its handler, whose time is bounded.
const startSlack = time.Minute

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
	starts, may, err := r.processor.countStart(ctx, it.id)
	if err == nil && !may {
		var left consumerdb.StartsLeftRow
		if left, err = r.processor.startsLeft(ctx, it.id); err == nil {
			return r.crashed(ctx, it, left.Starts)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("handle %s %s: %w", ev.Type, ev.Key, err)
	}
	defer r.processor.endStart(ctx, it.id, starts)
	return r.Handle(ctx, ev)
}

// countStart counts that the handling of an event begins, and returns how often it
// was begun and has not come back, this time included. It may not begin when that
// was so Retry.MaxAttempts times.
func (p *Processor) countStart(ctx context.Context, id uuid.UUID) (starts int32, may bool, err error) {
	if counted, ok := p.cameBack.LoadAndDelete(id); ok { // and could not be taken back then
		starts, _ = counted.(int32)
		return starts, true, nil
	}
	starts, err = consumerdb.New(p.db).CountStart(ctx, consumerdb.CountStartParams{
		EventID: id, ConsumerGroup: p.group, Keep: consumerdb.Interval(attemptsKept), Most: int32(p.retry.MaxAttempts),
		LastError: "the process ended while the event was being handled",
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, false, nil
	case err != nil:
		return 0, false, unusable(fmt.Errorf("count the start of a handler: %w", err))
	}
	return starts, true, nil
}

// startsLeft reads the starts of an event that have not come back.
func (p *Processor) startsLeft(ctx context.Context, id uuid.UUID) (consumerdb.StartsLeftRow, error) {
	left, err := consumerdb.New(p.db).StartsLeft(ctx, consumerdb.StartsLeftParams{
		EventID: id, ConsumerGroup: p.group, Keep: consumerdb.Interval(attemptsKept), Longest: consumerdb.Interval(p.handlerTimeout + startSlack),
	})
	if err != nil {
		return left, unusable(fmt.Errorf("read the starts of a handler: %w", err))
	}
	return left, nil
}

// crashError is that of a letter whose handling has not come back so many times.
type crashError struct {
	id    uuid.UUID // under which they are counted
	times int32
}

// Error implements error.
func (e *crashError) Error() string {
	return fmt.Sprintf("the process ended %d times while the event of this letter was handled again; "+
		"find out what the handler does with it, then redrive the letter once more, or discard it", e.times)
}

// usedUp is the end of a redrive that may not begin. Other members may be at it: the
// starts are crashes once none of them can be.
func (r *Router) usedUp(ctx context.Context, id uuid.UUID) (Outcome, error) {
	left, err := r.processor.startsLeft(ctx, id)
	switch {
	case err != nil:
		return 0, err
	case !left.Over:
		return InProgress, nil
	}
	return 0, &crashError{id, left.Starts}
}

// endStart takes a start back. One that cannot be taken back is remembered, so that
// an outage of the database does not look like a crash.
func (p *Processor) endStart(ctx context.Context, id uuid.UUID, starts int32) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cameBackTimeout)
	defer cancel()
	if err := consumerdb.New(p.db).CameBack(ctx, consumerdb.CameBackParams{EventID: id, ConsumerGroup: p.group, Starts: 1}); err != nil {
		p.cameBack.Store(id, starts)
		p.log.WarnContext(ctx, "that the handling of an event came back could not be written down", "event", id, "error", err)
	}
}

// forgetStarts takes back what has given an event up, so that a redrive of its letter
// has all attempts.
func (r *Router) forgetStarts(ctx context.Context, tx pgx.Tx, id uuid.UUID, times int32) error {
	if err := consumerdb.New(tx).CameBack(ctx, consumerdb.CameBackParams{EventID: id, ConsumerGroup: r.Group(), Starts: times}); err != nil {
		return fmt.Errorf("forget the starts of a handler: %w", err)
	}
	return nil
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
			return 1, r.forgetStarts(ctx, tx, it.id, times)
		})
	}
	if err != nil {
		return 0, fmt.Errorf("give up %s %s: %w", it.ev.Type, it.ev.Key, err)
	}
	return it.delivery.Outcome, it.delivery.Err
}
