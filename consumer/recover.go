package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/consumerdb"
)

// recoverEvents takes one event after the other.
func recoverEvents(ctx context.Context, r *Router, limit int) (done int, err error) {
	types, err := consumerdb.New(r.processor.db).OpenEventTypes(ctx, r.Group())
	if err != nil {
		return 0, &infrastructureError{fmt.Errorf("recover fences: %w", err)}
	}
	types = slices.DeleteFunc(types, func(eventType string) bool {
		h := r.handlers.find(eventType)
		return h == nil || h.fn == nil || h.again
	})
	for range limit {
		if len(types) == 0 {
			break
		}
		f, takeErr := consumerdb.New(r.processor.db).TakeOpenEvent(ctx,
			consumerdb.TakeOpenEventParams{ConsumerGroup: r.Group(), EventTypes: types})
		if errors.Is(takeErr, pgx.ErrNoRows) {
			break
		}
		if takeErr != nil {
			return done, errors.Join(err, &infrastructureError{fmt.Errorf("recover fences: %w", takeErr)})
		}
		ended, failure := openEvent(f).recover(ctx, r)
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

// recover gives the event to its handler.
func (o openEvent) recover(ctx context.Context, r *Router) (ended bool, err error) {
	ev, err := decodeEvent(o.Event)
	if err != nil {
		return false, o.stuck(ctx, r.processor, consumerdb.MarkEffectsStuckParams{Whole: true,
			Why: consumerdb.Reason(err)})
	}
	// Its letter waits no more, else the event were not taken, and was not settled, which ends it: it was discarded.
	if ev.redriven {
		return endGivenUp(ctx, r.processor, ev)
	}
	outcome, err := r.Handle(ctx, ev)
	switch {
	case errors.Is(err, ErrFenceStale):
		return false, o.stuck(ctx, r.processor, consumerdb.MarkEffectsStuckParams{Stale: true,
			Why: consumerdb.Reason(err)})
	case err != nil:
		return false, err
	case outcome == DeadLettered:
		return endGivenUp(ctx, r.processor, ev)
	case outcome != Processed && outcome != Duplicate:
		return false, nil // in progress
	}
	r.processor.log.InfoContext(ctx, "event recovered", "event", ev.Key.String())
	return true, nil
}

// endGivenUp ends an event whose letter was discarded while somebody was at it. One
// whose letter waits stays open with that.
func endGivenUp(ctx context.Context, p *Processor, ev Event) (ended bool, err error) {
	n, err := consumerdb.New(p.db).EndGivenUp(ctx, consumerdb.EndGivenUpParams{
		Keep: p.windows.effectsKept(ev.Type), EventID: ev.Key.UUID(), ConsumerGroup: p.group,
	})
	if err != nil {
		return false, &infrastructureError{fmt.Errorf("end an event that was given up: %w", err)}
	}
	return n > 0, nil
}

// stuck leaves effects of the event that nobody is at to an operator.
func (o openEvent) stuck(ctx context.Context, p *Processor, mark consumerdb.MarkEffectsStuckParams) error {
	mark.EventID, mark.ConsumerGroup = o.EventID, p.group
	n, err := consumerdb.New(p.db).MarkEffectsStuck(ctx, mark)
	if err != nil {
		return &infrastructureError{fmt.Errorf("leave it to an operator: %w", err)}
	}
	if n > 0 {
		p.log.WarnContext(ctx, "effects left to an operator", "event", o.EventID.String(), "effects", n, "why", mark.Why)
	}
	return nil
}
