package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer/internal/statement"
	"github.com/onceward/onceward/internal/consumerdb"
)

// DefaultMaxAttempts of [Retry]. With the pauses of package saramagroup they
// take three to six minutes.
const DefaultMaxAttempts = 20

// attemptsKept is how long the count of an event's failures is remembered after
// the last one.
const attemptsKept = 7 * 24 * time.Hour

// Retry says when an event whose handler fails is given up: it becomes a dead
// letter with the reason "handler", its claim says dead, and the message is
// [DeadLettered]. Failures of infrastructure do not count, see
// [IsInfrastructure], but for one: when the transaction of an event has broken more
// than five times in a row while its handler ran, or as it was committed, and this
// process has finished other events in between, each further time is a failure of
// the handler. What makes the server crash, or a pooler end the session, would be
// tried for ever else; in an outage nothing is finished. Events without a Source have no place for a letter, so
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
	// OnLetter says what becomes of the events behind one that became a dead
	// letter, whatever for. Default [LetterGoOn].
	OnLetter LetterPolicy
}

// DeadLetter marks an error of a handler: no further attempt can help, and the
// event becomes a dead letter at once.
func DeadLetter(err error) error { return &deadLetterError{err} }

type deadLetterError struct{ err error }

func (e *deadLetterError) Error() string { return e.err.Error() }
func (e *deadLetterError) Unwrap() error { return e.err }

// permanent reports whether the handler's error gives the event up at once.
func (r Retry) permanent(cause error) (is bool, err error) {
	var marked *deadLetterError
	if errors.As(cause, &marked) || r.Permanent == nil {
		return marked != nil, nil
	}
	err = <-apart(func() error {
		is = r.Permanent(cause)
		return nil
	})
	return is, err
}

// failed is the end of a delivery of one event that did not succeed. A failure of
// the handler, whose transaction is rolled back, is counted, and gives the event
// up when that was the last attempt it may have.
func (r *Router) failed(ctx context.Context, it *item, cause error) {
	handlers := isHandlers(cause)
	if handlers {
		r.processor.breaks.Forget(it.id)
	} else if it.ev.Source.Topic != "" && broke(ctx, cause) {
		cause = r.processor.brokeAlone(it, cause) // which the next delivery writes down
	}
	if !handlers && errors.Is(cause, ErrInProgress) {
		it.delivery = Delivery{Outcome: InProgress}
		return
	}
	it.delivery = Delivery{Err: cause}
	if !handlers || ctx.Err() != nil || it.ev.Source.Topic == "" || it.redrive != nil {
		return
	}
	if err := r.count(ctx, it, cause); err != nil {
		it.delivery = Delivery{Err: errors.Join(cause, err)}
	}
}

// count counts a failure of the handler, and gives the event up when it was the last
// one that it may have.
func (r *Router) count(ctx context.Context, it *item, cause error) error {
	_, err := r.inTx(ctx, []*item{it}, func(tx pgx.Tx) (int, error) {
		attempts, last, err := r.countAttempt(ctx, tx, it, cause)
		if it.end.err = cause; err != nil || !last {
			return 1, err
		}
		return 1, r.giveUp(ctx, tx, it, givenUp(it, reasonHandler, cause, attempts))
	})
	return err
}

// giveUp claims an event that is not applied, because its last attempt has failed, say. One that another delivery
// has settled meanwhile is left as it is. An event that is open was not settled,
// whatever its claim says: that was written with its first effect, by an earlier
// release.
func (r *Router) giveUp(ctx context.Context, tx pgx.Tx, it *item, end ending) (err error) {
	if err := r.steps.claim(ctx, tx, []*item{it}); err != nil {
		return err
	}
	open := it.fresh()
	if it.open && it.claim.Outcome == Duplicate { // unless it was ended since it was looked at
		if open, err = (fences{claimant{r.processor, statement.On(tx)}}).isOpen(ctx, it); err != nil {
			return err
		}
	}
	if open {
		it.end = end
		return nil
	}
	it.end, err = r.refuse(it)
	return err
}

// givenUp is the ending of an event that becomes a dead letter in place of its effect.
func givenUp(it *item, why reason, cause error, attempts int32) ending {
	e := asLetter(it, why, cause)
	e.dead, e.letter.attempts = true, attempts
	return e
}

// countAttempt counts one failure and reports whether it was the last.
func (r *Router) countAttempt(ctx context.Context, tx pgx.Tx, it *item, cause error) (attempts int32, last bool, err error) {
	attempts, err = consumerdb.New(tx).CountAttempt(ctx, consumerdb.CountAttemptParams{
		EventID: it.id, ConsumerGroup: r.Group(), LastError: errorText(cause), Keep: consumerdb.Interval(attemptsKept),
	})
	if err != nil {
		return 0, false, fmt.Errorf("count attempt: %w", err)
	}
	limit := r.processor.retry.MaxAttempts
	permanent, err := r.processor.retry.permanent(cause)
	if err != nil {
		r.processor.log.ErrorContext(ctx, "Retry.Permanent panicked, or ended its goroutine; the error counts as one that may pass", "event", it.ev.Key.String(), "error", err)
	}
	return attempts, limit >= 0 && int(attempts) >= limit || permanent, nil
}
