package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/internal/consumerdb"
)

// Claim is what [Processor.Claim] found.
type Claim struct {
	// Outcome is Processed when the claim is new: it counts when, and only
	// when, the transaction commits. Otherwise Duplicate, InProgress,
	// Mismatch, DeadLettered for an event that was given up before, Replay or
	// FromFuture.
	Outcome Outcome
	// Late: the event's time lies below the floor of its class, and the group
	// sees it for the first time. With the outcome Replay: the class refuses
	// late events.
	Late bool
	// Unprotected: a replay from below the floor that its class applies all the
	// same; its effect may have been made before.
	Unprotected bool
	// AppliedAt is when the event was applied first, or given up; zero when
	// there is no earlier claim.
	AppliedAt time.Time
	// Result is what [Processor.Complete] stored the first time, JSON; nil
	// unless Duplicate, and when nothing was stored.
	Result []byte
	// Mismatch carries both fingerprints; nil unless the outcome is Mismatch.
	Mismatch *MismatchError

	ids []uuid.UUID // of a claim that is new, or of the one that is there
}

// claimIn claims one event in the caller's transaction, which is bounded already.
func (c claimant) claimIn(ctx context.Context, ev Event) (Claim, error) {
	it := c.processor.newItem(ev)
	err := c.claimOne(ctx, it)
	if err == nil && !it.fresh() {
		err = c.q.RestoreLockTimeout(ctx) // the transaction goes on
	}
	switch {
	case errors.Is(err, ErrInProgress):
		return Claim{Outcome: InProgress}, nil
	case err != nil:
		return Claim{}, err
	}
	return it.claim, nil
}

// claimOne claims one event outside a router, whose endings would remember its offset
// later. What is not new is remembered too; the transaction has to commit.
func (c claimant) claimOne(ctx context.Context, it *item) error {
	if err := c.claim(ctx, []*item{it}); err != nil {
		return err
	}
	return c.remember(ctx, []*item{it})
}

// completeOne finds the claim again. One by arrival has the same ids as before:
// the time of arrival is that of the transaction.
func (c claimant) completeOne(ctx context.Context, ev Event, result []byte) error {
	pl, err := (&look{processor: c.processor, q: c.q.Queries}).plan(ctx, &ev)
	if err != nil {
		return fmt.Errorf("complete %s: %w", ev.Key, err)
	}
	return c.complete(ctx, ev, result, slices.Concat([]uuid.UUID{c.processor.claimID(ev)}, pl.ids, pl.known))
}

var errNoClaim = errors.New("there is no claim; call Claim first, in the same transaction")

// complete stores a result under every id of the claim: a duplicate by arrival
// may meet any of them.
func (c claimant) complete(ctx context.Context, ev Event, result []byte, ids []uuid.UUID) error {
	if !json.Valid(result) {
		return fmt.Errorf("complete %s: the result is not JSON", ev.Key)
	}
	n, err := c.q.ByID.CompleteClaims(ctx, consumerdb.CompleteClaimsParams{Result: string(result), ConsumerGroup: c.processor.group, EventIds: consumerdb.Texts(ids)})
	if err == nil && n == 0 {
		err = errNoClaim
	}
	if err != nil {
		return fmt.Errorf("complete %s: %w", ev.Key, err)
	}
	return nil
}
