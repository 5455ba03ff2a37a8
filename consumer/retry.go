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

// DefaultMaxAttempts of [Retry]. With the pauses of package saramagroup they
// take about eight minutes.
const DefaultMaxAttempts = 20

// attemptsKept is how long the count of an event's failures is remembered after
// the last one.
const attemptsKept = 7 * 24 * time.Hour

// Retry says when an event whose handler fails is given up: it becomes a dead
// letter with the reason "handler", its claim says dead, and the message is
// [DeadLettered]. Failures of infrastructure never count, see
// [IsInfrastructure]. Events without a Source have no place for a letter, so
// that their failures are returned for ever.
type Retry struct {
	// MaxAttempts is how many failures of the handler an event may have, through
	// restarts and on whichever member of the group. Default
	// [DefaultMaxAttempts]; negative: no limit.
	MaxAttempts int
	// Permanent reports that no further attempt can mend a handler's error, in
	// addition to those marked by [DeadLetter]. May be nil. It must be safe for
	// concurrent use.
	Permanent func(err error) bool
}

// DeadLetter marks an error of a handler: no further attempt can help, and the
// event becomes a dead letter at once.
func DeadLetter(err error) error { return &deadLetterError{err} }

type deadLetterError struct{ err error }

func (e *deadLetterError) Error() string { return e.err.Error() }
func (e *deadLetterError) Unwrap() error { return e.err }

// permanent reports whether the handler's error gives the event up at once.
func (r Retry) permanent(err error) bool {
	var marked *deadLetterError
	return errors.As(err, &marked) || r.Permanent != nil && r.Permanent(err)
}

// failed counts a failure of the handler, whose transaction is rolled back, and
// gives the event up when that was the last attempt it may have.
func (r *Router) failed(ctx context.Context, ev Event, cause error) (Outcome, error) {
	var handler *HandlerError
	if !errors.As(cause, &handler) || IsInfrastructure(cause) || ctx.Err() != nil || ev.Source.Topic == "" {
		return 0, cause
	}
	tx, err := r.steps.begin(ctx)
	if err != nil {
		return 0, errors.Join(cause, err)
	}
	defer rollback(ctx, tx)
	attempts, last, err := r.countAttempt(ctx, consumerdb.New(tx), ev, cause)
	if err == nil && last {
		var outcome Outcome
		if outcome, err = r.kill(ctx, tx, ev, attempts, cause); err == nil {
			return outcome, nil
		}
	} else if err == nil {
		err = r.steps.commit(ctx, tx)
	}
	return 0, errors.Join(cause, judge(ctx, tx, err))
}

// countAttempt counts one failure and reports whether it was the last.
func (r *Router) countAttempt(ctx context.Context, q *consumerdb.Queries, ev Event, cause error) (attempts int32, last bool, err error) {
	attempts, err = q.CountAttempt(ctx, consumerdb.CountAttemptParams{
		EventID: r.processor.claimID(ev), ConsumerGroup: r.Group(), LastError: errorText(cause), Keep: interval(attemptsKept),
	})
	if err != nil {
		return 0, false, fmt.Errorf("count attempt: %w", err)
	}
	limit := r.processor.retry.MaxAttempts
	return attempts, limit >= 0 && int(attempts) >= limit || r.processor.retry.permanent(cause), nil
}

// kill gives an event up: a dead claim and a dead letter, in one transaction. An
// event that another delivery has settled meanwhile is left as it is.
func (r *Router) kill(ctx context.Context, tx pgx.Tx, ev Event, attempts int32, cause error) (Outcome, error) {
	claim, err := r.steps.claim(ctx, tx, ev)
	if err != nil {
		return 0, err
	}
	if claim.Outcome == Mismatch {
		return r.mismatch(ctx, tx, ev, claim.Mismatch)
	}
	if claim.Outcome == Replay || claim.Outcome == FromFuture {
		return r.outside(ctx, tx, ev, claim)
	}
	if claim.Outcome != Processed {
		return claim.Outcome, nil
	}
	if err := r.markDead(ctx, consumerdb.New(tx), claim.ids); err != nil {
		return 0, err
	}
	l := letter{record: ev.record(), event: ev, reason: reasonHandler, cause: cause, attempts: attempts}
	if err := r.bury(ctx, tx, l); err != nil {
		return 0, err
	}
	return DeadLettered, nil
}

// markDead turns the claims of an event, made in this transaction, into those of
// a dead one.
func (r *Router) markDead(ctx context.Context, q *consumerdb.Queries, ids []uuid.UUID) error {
	for _, id := range ids {
		n, err := q.MarkDead(ctx, consumerdb.MarkDeadParams{EventID: id, ConsumerGroup: r.Group()})
		if err == nil && n != 1 {
			err = errors.New("the claim is gone")
		}
		if err != nil {
			return fmt.Errorf("mark the claim as dead: %w", err)
		}
	}
	return nil
}
