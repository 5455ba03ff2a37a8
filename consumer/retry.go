package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer/internal/aside"
	"github.com/onceward/onceward/consumer/internal/memory"
	"github.com/onceward/onceward/consumer/internal/statement"
	"github.com/onceward/onceward/internal/consumerdb"
)

// defaultMaxAttempts of [Retry]. With the pauses of package saramagroup they take three to six minutes.
const defaultMaxAttempts = 20

// attemptsKept is how long the count of an event's failures is remembered after the last one.
const attemptsKept = 7 * 24 * time.Hour

// cameBackTimeout bounds how long it may take to say that the handling of an event
// came back, which must not depend on the delivery's own context.
const cameBackTimeout = 5 * time.Second

// startSlack is what a redrive may take beside its handler, whose time is bounded.
const startSlack = time.Minute

// Retry says when an event whose handler fails is given up: it becomes a dead letter with the reason "handler", its
// claim says dead, and the message is [DeadLettered]. Failures of infrastructure do not count, see
// [IsInfrastructure], but for one: when the transaction of an event has broken more than five times in a row while its
// handler ran, or as it was committed, and this process has finished other events in between, each further time is a
// failure of the handler. What makes the server crash, or a pooler end the session, would be tried for ever else; in an
// outage nothing is finished. The failures of events without a Source are returned for ever, and counted by who calls
// [CountFailure] only.
type Retry struct {
	// MaxAttempts is how many failures of the handler an event may have, through restarts and on whichever member of
	// the group. Default 20; negative: no limit.
	MaxAttempts int
	// Permanent reports that no further attempt can mend a handler's error, in addition to those marked by
	// [DeadLetter]. May be nil. It must be safe for concurrent use.
	Permanent func(err error) bool
	// OnLetter says what becomes of events behind one that became a dead letter, whatever for. Default [LetterGoOn].
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
	err = aside.Do(func() error { return recovered(func() error { is = r.Permanent(cause); return nil }) })
	return is, err
}

// attempts are how often events were handled and have failed, or have not come back, as
// the database counts it for all members.
type attempts struct {
	*member
	windows  *windows
	cameBack sync.Map // of events whose start is counted although their handling came back: how often
}

// failure counts one failure, which it tells how many there are, and reports whether it was the last.
func (a *attempts) failure(ctx context.Context, tx pgx.Tx, it *item, cause error) (times int32, last bool, err error) {
	keep := attemptsKept
	if it.content && it.tries == it.id { // of no record
		keep = min(keep, 2*a.windows.windowOf(it.ev.Type))
	}
	times, err = consumerdb.New(tx).CountAttempt(ctx, consumerdb.CountAttemptParams{
		EventID: it.tries, ConsumerGroup: a.group, LastError: consumerdb.Reason(cause), Keep: consumerdb.Interval(keep),
	})
	if err != nil {
		return 0, false, fmt.Errorf("count attempt: %w", err)
	}
	if failed := (*HandlerError)(nil); errors.As(cause, &failed) {
		failed.Attempts = times
	}
	permanent, err := a.retry.permanent(cause)
	if err != nil {
		a.log.ErrorContext(ctx, "Retry.Permanent panicked, or ended its goroutine; the error counts as one that may pass", "event", it.ev.Key.String(), "error", err)
	}
	return times, permanent || a.retry.MaxAttempts >= 0 && int(times) >= a.retry.MaxAttempts, nil
}

// start counts that the handling of an event begins, and returns how often it was begun and has not come
// back, this time included. It may not begin when that was so Retry.MaxAttempts times.
func (a *attempts) start(ctx context.Context, id uuid.UUID) (starts int32, may bool, err error) {
	if counted, ok := a.cameBack.LoadAndDelete(id); ok { // and could not be taken back then
		starts, _ = counted.(int32)
		return starts, true, nil
	}
	starts, err = consumerdb.New(a.db).CountStart(ctx, consumerdb.CountStartParams{
		EventID: id, ConsumerGroup: a.group, Keep: consumerdb.Interval(attemptsKept), Most: int32(a.retry.MaxAttempts),
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

// left reads the starts of an event that have not come back.
func (a *attempts) left(ctx context.Context, id uuid.UUID) (consumerdb.StartsLeftRow, error) {
	left, err := consumerdb.New(a.db).StartsLeft(ctx, consumerdb.StartsLeftParams{
		EventID: id, ConsumerGroup: a.group, Keep: consumerdb.Interval(attemptsKept),
		Longest: consumerdb.Interval(a.handlerTimeout + startSlack),
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
func (a *attempts) usedUp(ctx context.Context, id uuid.UUID) (Outcome, error) {
	left, err := a.left(ctx, id)
	switch {
	case err != nil:
		return 0, err
	case !left.Over:
		return InProgress, nil
	}
	return 0, &crashError{id, left.Starts}
}

// end takes a start back. One that cannot be taken back is remembered, so that
// an outage of the database does not look like a crash.
func (a *attempts) end(ctx context.Context, id uuid.UUID, starts int32) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cameBackTimeout)
	defer cancel()
	if err := consumerdb.New(a.db).CameBack(ctx, consumerdb.CameBackParams{EventID: id, ConsumerGroup: a.group,
		Starts: 1}); err != nil {
		a.cameBack.Store(id, starts)
		a.log.WarnContext(ctx, "that the handling of an event came back could not be written down", "event", id, "error", err)
	}
}

// forget takes back what has given an event up, so that a redrive of its letter has all attempts.
func (a *attempts) forget(ctx context.Context, tx pgx.Tx, id uuid.UUID, times int32) error {
	if err := consumerdb.New(tx).CameBack(ctx, consumerdb.CameBackParams{EventID: id, ConsumerGroup: a.group,
		Starts: times}); err != nil {
		return fmt.Errorf("forget the starts of a handler: %w", err)
	}
	return nil
}

// errBroken marks that a delivery's transaction broke while the handler ran. Mostly
// that is an outage. But a handler whose statements make the server end the session
// breaks it each time, and would be tried again for ever.
var errBroken = errors.New("the transaction broke while the handler ran")

// errConflict is the errBroken of one that gave way to another transaction: a deadlock,
// or a failed serialization, which pass when it is tried again.
var errConflict = fmt.Errorf("%w, or at its commit: it gave way to another one", errBroken)

// How often in a row that may happen to an event, while others are finished in between,
// before it counts as a failure of its handler.
const (
	maxBreaks    = 5
	maxConflicts = 10
)

// breaks are those of transactions, counted for each event.
type breaks struct{ memory.Breaks }

// alone counts a break of the transaction that an event had for itself. What it
// returns is a failure of the handler when there were too many.
func (b *breaks) alone(it *item, cause error) error {
	most, look := maxBreaks, "what makes the server or a pooler end the session"
	if errors.Is(cause, errConflict) {
		most, look = maxConflicts, "with what its statements conflict each time"
	}
	if owed := b.Count(it.tries, most, func(times int) error {
		return &HandlerError{Err: fmt.Errorf("its transaction broke %d times in a row, while other events were applied; find out %s: %w", times, look, cause)}
	}); owed != nil {
		return owed
	}
	return cause
}

// broke reports whether the handlers may have broken the transaction.
func broke(ctx context.Context, err error) bool {
	return ctx.Err() == nil && (errors.Is(err, errBroken) || errors.Is(err, ErrCommitUnknown))
}

// again reports whether events of a transaction that broke are to have one each:
// one of those that may be to blame, which is each when it broke at its commit, may have been before.
func (b *breaks) again(ctx context.Context, items []*item, err error) (seen bool) {
	if !broke(ctx, err) {
		return false
	}
	handlers := slices.ContainsFunc(items, func(it *item) bool { return it.broke })
	for _, it := range items {
		if it.broke || !handlers {
			seen = b.Seen(it.tries) || seen
		}
	}
	return seen
}

func (b *breaks) owedBy(items []*item) bool {
	return slices.ContainsFunc(items, func(it *item) bool { return b.Debt(it.tries) != nil })
}

// failed is the end of a delivery of one event that did not succeed. A failure of
// the handler, whose transaction is rolled back, is counted, and gives the event
// up when that was the last attempt it may have.
func (s *steps) failed(ctx context.Context, it *item, cause error) {
	handlers := isHandlers(cause)
	if handlers {
		s.processor.breaks.Forget(it.tries)
	} else if (it.redrive != nil || it.ev.Source.Topic != "") && broke(ctx, cause) {
		cause = s.processor.breaks.alone(it, cause) // which the next delivery writes down
	}
	if !handlers && errors.Is(cause, ErrInProgress) {
		it.delivery = Delivery{Outcome: InProgress}
		return
	}
	it.delivery = Delivery{Err: cause}
	if !handlers || ctx.Err() != nil || it.ev.Source.Topic == "" || it.redrive != nil {
		return
	}
	if err := s.count(ctx, it, cause); err != nil {
		it.delivery = Delivery{Err: errors.Join(cause, err)}
	}
}

// count counts a failure of the handler, and gives the event up when it was the last one that it may have.
func (s *steps) count(ctx context.Context, it *item, cause error) error {
	return s.inTx(ctx, []*item{it}, func(tx pgx.Tx) error {
		attempts, last, err := s.processor.attempts.failure(ctx, tx, it, cause)
		if it.end.err = cause; err != nil || !last {
			return err
		}
		return s.giveUp(ctx, tx, it, givenUp(it, reasonHandler, cause, attempts))
	})
}

// pay counts the failure that an event owes, before its handler runs again: right after it the database
// may have been away, because it had crashed. Over: it was the last one, or could not be counted.
func (s *steps) pay(ctx context.Context, it *item) (over bool) {
	cause := s.processor.breaks.Debt(it.tries)
	if it.redrive != nil {
		it.delivery.Err = cause // opens the letter again
		s.processor.breaks.Forget(it.tries)
		return true
	}
	if err := s.count(ctx, it, cause); err != nil {
		it.delivery.Err = err
		return true
	}
	if it.delivery.Err == nil {
		return true
	}
	it.delivery = Delivery{}
	s.processor.breaks.Paid(it.tries)
	return false
}

// giveUp claims an event that is not applied, because its last attempt has failed, say. One that another
// delivery has settled meanwhile is left as it is. An event that is open was not settled, whatever its
// claim says: that was written with its first effect, by an earlier release.
func (s *steps) giveUp(ctx context.Context, tx pgx.Tx, it *item, end ending) (err error) {
	if err := s.claim(ctx, tx, []*item{it}); err != nil {
		return err
	}
	open := it.fresh()
	if it.open && it.claim.Outcome == Duplicate { // unless it was ended since it was looked at
		if open, err = (fences{claimant{s.processor, statement.On(tx)}}).isOpen(ctx, it); err != nil {
			return err
		}
	}
	if it.handler != nil && it.handler.again && it.claim.Outcome == Duplicate && it.claim.AppliedAt.IsZero() {
		open, end.dead = true, false // its mark has passed, of an offset that was set back: no claim says anything
	}
	if open {
		it.end = end
		return nil
	}
	it.end, err = it.refuse(s.processor)
	return err
}

// givenUp is the ending of an event that becomes a dead letter in place of its effect.
func givenUp(it *item, why reason, cause error, attempts int32) ending {
	e := asLetter(it, why, cause)
	e.dead, e.letter.attempts = true, attempts
	return e
}

// crashed gives up an event whose handling has not come back so many times.
func (s *steps) crashed(ctx context.Context, it *item, times int32) (Outcome, error) {
	cause := fmt.Errorf("the process ended %d times while this event, and nothing else of its partition, was being handled; "+
		"find out what the handler does with it, then redrive the letter, or discard it", times)
	settled, err := false, error(nil)
	if it.handler.fn != nil && !it.handler.again {
		settled, err = s.look(ctx, it)
	}
	if err == nil && !settled {
		err = s.inTx(ctx, []*item{it}, func(tx pgx.Tx) error {
			if err := s.giveUp(ctx, tx, it, givenUp(it, reasonCrash, cause, times)); err != nil {
				return err
			}
			return s.processor.attempts.forget(ctx, tx, it.tries, times)
		})
	}
	if err != nil {
		return 0, fmt.Errorf("give up %s %s: %w", it.ev.Type, it.ev.Key, err)
	}
	return it.delivery.Outcome, it.delivery.Err
}
