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

// isolate delivers the items in small transactions, each as far as it gets.
func (s *steps) isolate(ctx context.Context, items []*item) {
	held := make(map[string]bool)
	rest := slices.Clone(items)
	for len(rest) > 0 {
		rest = slices.DeleteFunc(rest, func(it *item) bool {
			if it.delivery.Err == nil && held[it.ev.AggregateID] {
				it.delivery.Err = ErrHeldBack
			}
			return it.delivery.Err != nil
		})
		chunk := rest[:min(len(rest), maxSavepoints)]
		if len(chunk) == 0 {
			return
		}
		finished, err := s.isolating(ctx, chunk)
		// The commit has found what no savepoint had.
		if cannotShare(err) || isHandlers(err) || s.processor.breaks.again(ctx, chunk, err) {
			s.alone(ctx, chunk)
			finished, err = len(chunk), nil
		}
		if err != nil {
			fail(rest[finished:], err)
			return
		}
		for _, it := range chunk {
			held[it.ev.AggregateID] = held[it.ev.AggregateID] || it.delivery.Err != nil ||
				finished == len(chunk) && !it.delivery.Finished()
		}
		rest = rest[finished:]
	}
}

// cannotShare reports whether an event keeps its neighbours from their transaction, and only that.
func cannotShare(err error) bool {
	return errors.Is(err, errAlone) || errors.Is(err, ErrClock) || errors.Is(err, ErrParkedFull)
}

// isolating is the transaction with a savepoint around each event. It ends
// before the first event that is to be tried again; what is before that is
// committed. The claims of that event and of all after it are taken back: a
// claim left behind would be an event lost.
func (s *steps) isolating(ctx context.Context, items []*item) (finished int, err error) {
	return s.inTx(ctx, items, func(tx pgx.Tx) (int, error) {
		if err := s.claim(ctx, tx, items); err != nil {
			return 0, err
		}
		for k, it := range items {
			again, err := s.try(ctx, tx, it)
			if err != nil {
				return 0, err
			}
			if again != nil {
				it.delivery.Err = again
				return k, claimant{s.processor, statement.On(tx)}.unclaim(ctx, items[k:])
			}
			if err := s.holdBackBehind(ctx, tx, it, items[k+1:]); err != nil {
				return 0, err
			}
		}
		return len(items), nil
	})
}

// errAlone: the events cannot share a transaction, because one of them ends it
// for the others.
var errAlone = errors.New("the events cannot share a transaction")

// try runs one handler within a savepoint. Again is the handler's failure when
// the event is to be tried another time.
func (s *steps) try(ctx context.Context, tx pgx.Tx, it *item) (again, err error) {
	if !it.fresh() {
		return nil, s.one(ctx, nil, tx, []*item{it})
	}
	savepoint, err := tx.Begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("savepoint: %w", err)
	}
	cause := s.one(ctx, nil, savepoint, []*item{it})
	if cause == nil {
		if err := savepoint.Commit(ctx); err != nil {
			return nil, fmt.Errorf("release savepoint: %w", err)
		}
		return nil, nil
	}
	switch cause = judge(ctx, tx, cause); {
	case transaction.Abandoned(tx):
		return nil, errAlone
	case !isHandlers(cause):
		return nil, cause
	case savepoint.Rollback(ctx) != nil:
		return nil, errAlone // it has left its neighbours no transaction to go on with
	}
	if it.ev.Source.Topic == "" {
		return cause, nil // there is no place for a letter
	}
	attempts, last, err := s.processor.attempts.failure(ctx, tx, it, cause)
	if err != nil {
		return nil, err
	}
	if !last {
		return cause, nil
	}
	it.end = givenUp(it, reasonHandler, cause, attempts)
	return nil, nil
}

// alone delivers the items one by one, each in a transaction of its own.
func (s *steps) alone(ctx context.Context, items []*item) {
	held := make(map[string]bool)
	for _, it := range items {
		if held[it.ev.AggregateID] {
			it.delivery.Err = ErrHeldBack
			continue
		}
		s.deliver(ctx, []*item{it})
		held[it.ev.AggregateID] = !it.delivery.Finished()
	}
}
