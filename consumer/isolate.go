package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer/internal/statement"
	"github.com/onceward/onceward/consumer/internal/transaction"
)

// maxSavepoints is how many events share a transaction in which each has a
// savepoint: PostgreSQL keeps 64 subtransactions of a session in shared memory,
// and becomes slow for everybody beyond.
const maxSavepoints = 50

// held are the aggregates behind whose events, which are not finished, later ones are not tried.
type held map[string]bool

// back reports whether an event is not to be tried, because it has failed, or is held back. One with an outcome is not.
func (h held) back(it *item) bool {
	if it.delivery.Outcome == 0 && it.delivery.Err == nil && h[it.ev.AggregateID] {
		it.delivery.Err = ErrHeldBack
	}
	h[it.ev.AggregateID] = h[it.ev.AggregateID] || it.delivery.Err != nil
	return it.delivery.Err != nil
}

// isolate delivers the items in small transactions, each as far as it gets.
func (s *steps) isolate(ctx context.Context, items []*item) {
	held, rest := make(held), slices.Clone(items)
	for {
		rest = slices.DeleteFunc(rest, func(it *item) bool { return held.back(it) || it.delivery.Outcome != 0 })
		chunk, err := rest[:min(len(rest), maxSavepoints)], errAlone
		if len(chunk) == 0 {
			return
		}
		if len(chunk) > 1 {
			err = s.isolating(ctx, chunk)
		}
		switch {
		// The commit has found what no savepoint had.
		case cannotShare(err) || isHandlers(err) || s.processor.breaks.again(ctx, chunk, err):
			s.alone(ctx, chunk, held)
		case err != nil:
			fail(rest, err)
			return
		}
	}
}

// cannotShare reports whether an event keeps its neighbours from their transaction, and only that.
func cannotShare(err error) bool {
	return errors.Is(err, errAlone) || errors.Is(err, ErrClock) || errors.Is(err, ErrParkedFull)
}

// isolating is the transaction with a savepoint around each event. It ends
// with the first event that is to be tried again; what is before that is
// committed. The claims of that event and of all after it are taken back: a
// claim left behind would be an event lost.
func (s *steps) isolating(ctx context.Context, items []*item) error {
	return s.inTx(ctx, items, func(tx pgx.Tx) error {
		if err := s.claim(ctx, tx, items); err != nil {
			return err
		}
		for k, it := range items {
			if err := s.try(ctx, tx, it); err != nil {
				return err
			}
			if it.end.outcome == 0 {
				return claimant{s.processor, statement.On(tx)}.unclaim(ctx, items[k:])
			}
			if err := s.holdBackBehind(ctx, tx, it, items[k+1:]); err != nil {
				return err
			}
		}
		return nil
	})
}

// errAlone: the events cannot share a transaction, because one of them ends it
// for the others.
var errAlone = errors.New("the events cannot share a transaction")

// try runs one handler within a savepoint. Where it has failed, and the event is to be tried another time, the
// ending has no outcome.
func (s *steps) try(ctx context.Context, tx pgx.Tx, it *item) error {
	if !it.fresh() {
		return s.one(ctx, nil, tx, []*item{it})
	}
	savepoint, err := tx.Begin(ctx)
	if err != nil {
		return fmt.Errorf("savepoint: %w", err)
	}
	cause := s.one(ctx, nil, savepoint, []*item{it})
	if cause == nil {
		if err := savepoint.Commit(ctx); err != nil {
			return fmt.Errorf("release savepoint: %w", err)
		}
		return nil
	}
	switch cause = judge(ctx, tx, cause); {
	case !isHandlers(cause):
		return cause
	case transaction.Abandoned(tx) || savepoint.Rollback(ctx) != nil:
		return errAlone // it has left its neighbours no transaction to go on with
	}
	it.end.err = cause
	if it.ev.Source.Topic == "" {
		return nil // there is no place for a letter
	}
	attempts, last, err := s.processor.attempts.failure(ctx, tx, it, cause)
	if err == nil && last {
		it.end = givenUp(it, reasonHandler, cause, attempts)
	}
	return err
}

// alone delivers the items one by one, each in a transaction of its own.
func (s *steps) alone(ctx context.Context, items []*item, held held) {
	for _, it := range items {
		if held.back(it) {
			continue
		}
		s.deliver(ctx, []*item{it})
		held[it.ev.AggregateID] = !it.delivery.Finished()
	}
}
