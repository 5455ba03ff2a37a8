package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/consumerdb"
)

// RecoverFences drives effects whose process died after it had begun them, when
// nobody delivers the event again: it gives the event, which the fence has kept,
// to the handler that was registered with [Router.Func]. At most limit fences; it
// returns how many were completed.
//
// A fence is taken when its lease ran out more than a minute ago, and after each
// attempt the next one waits longer, up to 17 hours. A failure counts as at a
// delivery, see [Retry]. Three kinds are left to an operator, with the reason in
// the column stuck of onceward.fences, where `outboxctl fences list` shows it,
// and one line in the log: [ErrFenceStale], an event that was given up, and a
// handler that did not call the fence. They are driven again when an operator has
// decided, or when the event is delivered or redriven. Fences of types without a
// Func handler in this program are left alone.
//
// The first failure is returned after all have been tried. Call it now and then;
// saramagroup.Run does. Safe for concurrent use.
func (r *Router) RecoverFences(ctx context.Context, limit int) (done int, err error) {
	if r.err != nil {
		return 0, r.err
	}
	types := slices.Sorted(maps.Keys(r.funcs))
	for range limit {
		f, takeErr := consumerdb.New(r.processor.db).TakeOrphanedFence(ctx, consumerdb.TakeOrphanedFenceParams{ConsumerGroup: r.Group(), EventTypes: types})
		if errors.Is(takeErr, pgx.ErrNoRows) {
			break
		}
		if takeErr != nil {
			return done, errors.Join(err, &infrastructureError{fmt.Errorf("recover fences: %w", takeErr)})
		}
		completed, failure := r.recoverFence(ctx, orphan(f))
		if completed {
			done++
		}
		if failure != nil && err == nil {
			err = fmt.Errorf("recover fence %q of event %s: %w", f.Name, f.EventID, failure)
		}
	}
	return done, err
}

// orphan is a fence that nobody was at.
type orphan consumerdb.TakeOrphanedFenceRow

// recoverFence gives the event to its handler, and looks what became of the
// fence.
func (r *Router) recoverFence(ctx context.Context, f orphan) (completed bool, err error) {
	ev, err := decodeEvent(f.Event)
	if err != nil {
		return false, r.stuck(ctx, f, consumerdb.MarkFencesStuckParams{Name: f.Name, Epoch: f.Epoch, Why: errorText(err)})
	}
	outcome, err := r.Handle(ctx, ev)
	switch {
	case errors.Is(err, ErrFenceStale):
		return false, r.stuck(ctx, f, consumerdb.MarkFencesStuckParams{Epoch: math.MaxInt64, Stale: true, Why: errorText(err)})
	case err != nil || outcome == InProgress:
		return false, err
	case outcome == DeadLettered:
		return false, r.stuck(ctx, f, consumerdb.MarkFencesStuckParams{Epoch: math.MaxInt64,
			Why: "the event was given up; redrive its dead letter, or say with `outboxctl fences reconcile` whether the effect happened"})
	}
	q := consumerdb.New(r.processor.db)
	now, err := q.FindFence(ctx, consumerdb.FindFenceParams{EventID: f.EventID, ConsumerGroup: r.Group(), Name: f.Name})
	if err != nil {
		return false, &infrastructureError{fmt.Errorf("look at it afterwards: %w", err)}
	}
	if now.CompletedAt != nil {
		r.processor.log.InfoContext(ctx, "fence recovered", "event", ev.Key.String(), "fence", f.Name)
		return true, nil
	}
	return false, r.stuck(ctx, f, consumerdb.MarkFencesStuckParams{Name: f.Name, Epoch: f.Epoch,
		Why: "the handler did not call this fence; if the program does not know it any more, say with `outboxctl fences reconcile` whether the effect happened"})
}

// stuck leaves the fence, or all of its event that nobody is at, to an operator.
func (r *Router) stuck(ctx context.Context, f orphan, mark consumerdb.MarkFencesStuckParams) error {
	mark.EventID, mark.ConsumerGroup = f.EventID, r.Group()
	n, err := consumerdb.New(r.processor.db).MarkFencesStuck(ctx, mark)
	if err != nil {
		return &infrastructureError{fmt.Errorf("leave it to an operator: %w", err)}
	}
	if n > 0 {
		r.processor.log.WarnContext(ctx, "fence left to an operator", "event", f.EventID.String(), "fence", f.Name, "why", mark.Why)
	}
	return nil
}
