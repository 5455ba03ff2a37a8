package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/consumerdb"
)

// Receipt is what [Do] and [Fence] return: the outcome, and the result of the
// one time the effect was made.
type Receipt[R any] struct {
	// Outcome is Processed when this call made the effect, Duplicate when an
	// earlier one did, DeadLettered when the event was given up before, Replay or
	// FromFuture when its time lies outside its window, so that nothing was done.
	// With an error it says nothing.
	Outcome Outcome
	// Result is what was returned the first time; a duplicate gets it from the
	// database. It is stored as JSON, so R must survive that.
	Result R
	// AppliedAt is when the effect was made; zero when this call made it.
	AppliedAt time.Time
	// Late: the event's time lies below the floor of its class, and the group
	// sees it for the first time; with the outcome Replay the class refuses it.
	Late bool
}

// Do applies an event once and remembers the result: claim, fn, its result and
// the commit are one transaction. For a duplicate fn is not called, and the
// first result is returned again. It is for receivers that answer, such as an
// HTTP handler; a consumer of a topic uses [Router.Tx].
//
// fn obeys the rules of a [TxHandler]. The error matches [ErrInProgress] while
// another delivery holds the claim, and is a [*MismatchError] when the key is
// taken by an event with other content; otherwise as [Router.Handle].
func Do[R any](ctx context.Context, p *Processor, ev Event, fn func(ctx context.Context, tx pgx.Tx) (R, error)) (Receipt[R], error) {
	receipt, err := do(ctx, p, ev, fn)
	if err != nil {
		return Receipt[R]{}, fmt.Errorf("do %s %s: %w", ev.Type, ev.Key, note(ctx, err))
	}
	noteOutcome(ctx, ev, receipt.Outcome, receipt.Late)
	if receipt.Outcome == Processed || receipt.Outcome == Duplicate {
		p.applied(ctx, &ev)
	}
	return receipt, nil
}

func do[R any](ctx context.Context, p *Processor, ev Event, fn func(ctx context.Context, tx pgx.Tx) (R, error)) (r Receipt[R], err error) {
	if err := ev.validate(); err != nil {
		return r, err
	}
	tx, err := p.begin(ctx)
	if err != nil {
		return r, err
	}
	defer rollback(ctx, tx)
	defer func() { err = judge(ctx, tx, err) }()
	claim, err := p.claim(ctx, tx, ev)
	if err != nil {
		return r, err
	}
	switch claim.Outcome {
	case Processed:
		r.Late = claim.Late
	case Duplicate:
		r.Outcome, r.AppliedAt = Duplicate, claim.AppliedAt
		return r, decodeResult(claim.Result, &r.Result)
	case DeadLettered:
		r.Outcome, r.AppliedAt = DeadLettered, claim.AppliedAt
		return r, nil
	case Mismatch:
		return r, claim.Mismatch
	case Replay, FromFuture:
		r.Outcome, r.Late = claim.Outcome, claim.Late
		return r, nil
	default:
		return r, ErrInProgress
	}
	handler := func(ctx context.Context, tx pgx.Tx, _ Event) error {
		var err error
		if r.Result, err = fn(ctx, tx); err != nil {
			return err
		}
		result, err := json.Marshal(r.Result)
		if err != nil {
			return fmt.Errorf("encode the result for duplicates: %w", err)
		}
		return p.complete(ctx, consumerdb.New(tx), ev, result, claim.ids)
	}
	if err := apply(ctx, handler, tx, ev); err != nil {
		return r, err
	}
	r.Outcome = Processed
	return r, commit(ctx, tx)
}

// Complete stores a result, JSON, in the claim that [Processor.Claim] made in
// this transaction, for duplicates to get it as Claim.Result. It is optional.
func (p *Processor) Complete(ctx context.Context, tx pgx.Tx, ev Event, result []byte) error {
	return p.completeWith(ctx, consumerdb.New(tx), ev, result)
}

// completeWith finds the claim again. One by arrival has the same ids as before:
// the time of arrival is that of the transaction.
func (p *Processor) completeWith(ctx context.Context, q claimQueries, ev Event, result []byte) error {
	err := p.complete(ctx, q, ev, result, []uuid.UUID{p.claimID(ev)})
	if !errors.Is(err, errNoClaim) {
		return err
	}
	pl, err := (&look{processor: p, q: q}).plan(ctx, &ev)
	if err != nil {
		return fmt.Errorf("complete %s: %w", ev.Key, err)
	}
	return p.complete(ctx, q, ev, result, pl.ids)
}

var errNoClaim = errors.New("there is no claim; call Claim first, in the same transaction")

// complete stores a result under every id of the claim: a duplicate by arrival
// may meet any of them.
func (p *Processor) complete(ctx context.Context, q claimQueries, ev Event, result []byte, ids []uuid.UUID) error {
	if !json.Valid(result) {
		return fmt.Errorf("complete %s: the result is not JSON", ev.Key)
	}
	var stored int64
	for _, id := range ids {
		n, err := q.CompleteClaim(ctx, consumerdb.CompleteClaimParams{Result: result, EventID: id, ConsumerGroup: p.group})
		if err != nil {
			return fmt.Errorf("complete %s: %w", ev.Key, err)
		}
		stored += n
	}
	if stored == 0 {
		return fmt.Errorf("complete %s: %w", ev.Key, errNoClaim)
	}
	return nil
}

// decodeResult reads a stored result; none was stored by [Router.Tx].
func decodeResult(stored []byte, result any) error {
	if stored == nil {
		return nil
	}
	if err := json.Unmarshal(stored, result); err != nil {
		return fmt.Errorf("decode the result of the first time, which another version of this program may have written: %w", err)
	}
	return nil
}
