package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer/internal/statement"
)

// failed is the end of a delivery of one event that did not succeed. A failure of
// the handler, whose transaction is rolled back, is counted, and gives the event
// up when that was the last attempt it may have.
func (s *steps) failed(ctx context.Context, it *item, cause error) {
	handlers := isHandlers(cause)
	if handlers {
		s.processor.breaks.Forget(it.id)
	} else if it.ev.Source.Topic != "" && broke(ctx, cause) {
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

// count counts a failure of the handler, and gives the event up when it was the last
// one that it may have.
func (s *steps) count(ctx context.Context, it *item, cause error) error {
	_, err := s.inTx(ctx, []*item{it}, func(tx pgx.Tx) (int, error) {
		attempts, last, err := s.processor.attempts.failure(ctx, tx, it, cause)
		if it.end.err = cause; err != nil || !last {
			return 1, err
		}
		return 1, s.giveUp(ctx, tx, it, givenUp(it, reasonHandler, cause, attempts))
	})
	return err
}

// pay counts the failure that an event owes, before its handler runs again: right
// after it the database may have been away, because it had crashed. Over: it was the
// last one, or could not be counted.
func (s *steps) pay(ctx context.Context, it *item) (over bool) {
	cause := s.processor.breaks.Debt(it.id)
	if it.redrive != nil {
		it.delivery.Err = cause // opens the letter again
		s.processor.breaks.Forget(it.id)
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
	s.processor.breaks.Paid(it.id)
	return false
}

// giveUp claims an event that is not applied, because its last attempt has failed, say. One that another delivery
// has settled meanwhile is left as it is. An event that is open was not settled,
// whatever its claim says: that was written with its first effect, by an earlier
// release.
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
	if it.handler.fn != nil {
		settled, err = s.look(ctx, it)
	}
	if err == nil && !settled {
		_, err = s.inTx(ctx, []*item{it}, func(tx pgx.Tx) (int, error) {
			if err := s.giveUp(ctx, tx, it, givenUp(it, reasonCrash, cause, times)); err != nil {
				return 0, err
			}
			return 1, s.processor.attempts.forget(ctx, tx, it.id, times)
		})
	}
	if err != nil {
		return 0, fmt.Errorf("give up %s %s: %w", it.ev.Type, it.ev.Key, err)
	}
	return it.delivery.Outcome, it.delivery.Err
}
