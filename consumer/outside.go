package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/outbox"
)

// outside keeps an event that lies outside the window of its class, in the
// transaction that found out. One that has no place for a letter, or that is
// meant for another group, is left to the caller.
func (r *Router) outside(ctx context.Context, tx pgx.Tx, ev Event, c Claim) (Outcome, error) {
	l, ok := r.letterOutside(ev, c)
	if !ok {
		return c.Outcome, nil
	}
	if err := r.bury(ctx, tx, l); err != nil {
		return 0, err
	}
	return DeadLettered, nil
}

// letterOutside is the letter, if there is to be one.
func (r *Router) letterOutside(ev Event, c Claim) (letter, bool) {
	if ev.Source.Topic == "" || ev.ReplayMode == ReplayReprocess && ev.ReplayGroup != r.Group() {
		return letter{}, false
	}
	w := &r.processor.windows
	at := outbox.IDTime(r.processor.claimID(ev)).Format(time.RFC3339)
	l := letter{record: ev.record(), event: ev}
	switch {
	case c.Outcome == FromFuture:
		l.reason = reasonFromFuture
		l.cause = fmt.Errorf("the event time %s lies more than %s ahead of the database's clock; look at the producer's clock, and redrive the letter when the time has come", at, w.skew)
	case c.Late:
		l.reason = reasonLate
		l.cause = fmt.Errorf("the event time %s lies below the floor of its class, and the group sees the event for the first time; redrive the letter to apply it", at)
	default:
		l.reason = reasonReplay
		l.cause = fmt.Errorf("the event time %s lies below the floor of its class, and the group may have applied the event before; redrive the letter only if you know that it was not", at)
	}
	return l, true
}
