package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/consumerdb"
)

// RecoverFences drives open events whose process died within their handler, when
// nobody delivers the event again: it gives the event, which its first effect has
// kept, to the handler that was registered with [Router.Func]. At most limit
// events; it returns how many were ended.
//
// An event is taken when nobody has been at it for more than a minute, and after
// each attempt the next one waits longer, up to 17 hours. A failure counts as at a
// delivery, see [Retry]. Left to an operator are, with the reason in the column
// stuck of onceward.fences, where `outboxctl fences list` shows it, and one line
// in the log: [ErrFenceStale], an event that cannot be read, and an effect that
// the handler did not call. They are driven again when an operator has decided,
// or when the event is delivered or redriven. An event that was given up waits
// with its dead letter; one whose letter was discarded is ended, also while its redrive
// is under way. Events of types without a Func handler in this program are left alone.
//
// The first failure is returned after all have been tried. Call it now and then;
// saramagroup.Run does. Safe for concurrent use.
func (r *Router) RecoverFences(ctx context.Context, limit int) (done int, err error) {
	if r.err != nil {
		return 0, r.err
	}
	types, err := consumerdb.New(r.processor.db).OpenEventTypes(ctx, r.Group())
	if err != nil {
		return 0, &infrastructureError{fmt.Errorf("recover fences: %w", err)}
	}
	types = slices.DeleteFunc(types, func(eventType string) bool {
		h := r.find(eventType)
		return h == nil || h.fn == nil
	})
	for range limit {
		if len(types) == 0 {
			break
		}
		f, takeErr := consumerdb.New(r.processor.db).TakeOpenEvent(ctx, consumerdb.TakeOpenEventParams{ConsumerGroup: r.Group(), EventTypes: types})
		if errors.Is(takeErr, pgx.ErrNoRows) {
			break
		}
		if takeErr != nil {
			return done, errors.Join(err, &infrastructureError{fmt.Errorf("recover fences: %w", takeErr)})
		}
		ended, failure := r.recoverEvent(ctx, openEvent(f))
		if ended {
			done++
		}
		if failure != nil && err == nil {
			err = fmt.Errorf("recover event %s: %w", f.EventID, failure)
		}
	}
	return done, err
}

// openEvent is an event that nobody was at.
type openEvent consumerdb.TakeOpenEventRow

// recoverEvent gives the event to its handler.
func (r *Router) recoverEvent(ctx context.Context, o openEvent) (ended bool, err error) {
	ev, err := decodeEvent(o.Event)
	if err != nil {
		return false, r.stuck(ctx, o, consumerdb.MarkEffectsStuckParams{Whole: true, Why: errorText(err)})
	}
	if ev.redriven { // its letter waits no more, else the event were not taken, and was not settled, which ends it: it was discarded
		return r.endGivenUp(ctx, ev)
	}
	outcome, err := r.Handle(ctx, ev)
	switch {
	case errors.Is(err, ErrFenceStale):
		return false, r.stuck(ctx, o, consumerdb.MarkEffectsStuckParams{Stale: true, Why: errorText(err)})
	case err != nil:
		return false, err
	case outcome == DeadLettered:
		return r.endGivenUp(ctx, ev)
	case outcome != Processed && outcome != Duplicate:
		return false, nil // in progress
	}
	r.processor.log.InfoContext(ctx, "event recovered", "event", ev.Key.String())
	return true, nil
}

// endGivenUp ends an event whose letter was discarded while somebody was at it. One
// whose letter waits stays open with that.
func (r *Router) endGivenUp(ctx context.Context, ev Event) (ended bool, err error) {
	n, err := consumerdb.New(r.processor.db).EndGivenUp(ctx, consumerdb.EndGivenUpParams{
		Keep: r.processor.windows.effectsKept(ev.Type), EventID: ev.Key.UUID(), ConsumerGroup: r.Group(),
	})
	if err != nil {
		return false, &infrastructureError{fmt.Errorf("end an event that was given up: %w", err)}
	}
	return n > 0, nil
}

// stuck leaves effects of the event that nobody is at to an operator.
func (r *Router) stuck(ctx context.Context, o openEvent, mark consumerdb.MarkEffectsStuckParams) error {
	mark.EventID, mark.ConsumerGroup = o.EventID, r.Group()
	n, err := consumerdb.New(r.processor.db).MarkEffectsStuck(ctx, mark)
	if err != nil {
		return &infrastructureError{fmt.Errorf("leave it to an operator: %w", err)}
	}
	if n > 0 {
		r.processor.log.WarnContext(ctx, "effects left to an operator", "event", o.EventID.String(), "effects", n, "why", mark.Why)
	}
	return nil
}
