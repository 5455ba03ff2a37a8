package consumer

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer/internal/statement"
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

// Claim claims the event for the group inside the caller's own transaction;
// [Router.Handle] does it for handlers. Apply the effect in the same
// transaction if and only if the outcome is [Processed], then commit.
//
// It blocks while another transaction holds the claim, up to
// Config.LockTimeout, after which the outcome is [InProgress] and the
// transaction is aborted: roll back and try again later. Config.SessionTimeout
// and synchronous_commit = on hold for the rest of the transaction.
//
// Any error aborts the transaction. It matches [ErrNoPartition] when no
// partition covers the key's time; see [IsInfrastructure] for the others. In
// REPEATABLE READ and SERIALIZABLE a duplicate may be such an error (40001)
// first, and a Duplicate when the transaction is tried again.
//
// A transaction that claims several events must claim them in the order of
// their UUIDs: two that claim in opposite order deadlock.
//
// A replay in the mode [record.ReplayReprocess] for this group is claimed under its
// replay id, so that it is applied once more, and once only; for every other
// group it is a copy of the original event.
//
// An event whose time lies below the floor of its [Class] is judged by where it
// came from: late, or a replay. With the outcomes [Replay] and [FromFuture]
// nothing was claimed. A group that applies events without Source only in
// transactions of its own should call [Processor.SaveProgress] now and then,
// because floors follow its stream time.
func (p *Processor) Claim(ctx context.Context, tx pgx.Tx, ev Event) (Claim, error) {
	if err := ev.validate(); err != nil {
		return Claim{}, err
	}
	if _, err := tx.Exec(ctx, p.bounds.All); err != nil {
		return Claim{}, fmt.Errorf("claim %s: bound the transaction: %w", ev.Key, err)
	}
	return p.claimIn(ctx, statement.On(tx), ev)
}

// claimIn claims one event in the caller's transaction, which is bounded already.
func (p *Processor) claimIn(ctx context.Context, q statement.Queries, ev Event) (Claim, error) {
	it := p.newItem(ev)
	err := p.claimOne(ctx, q, it)
	if err == nil && !it.fresh() {
		err = q.RestoreLockTimeout(ctx) // the transaction goes on
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
func (p *Processor) claimOne(ctx context.Context, q statement.Queries, it *item) error {
	if err := p.claims(ctx, q, []*item{it}); err != nil {
		return err
	}
	return p.remember(ctx, q, []*item{it})
}

// Complete stores a result, JSON, in the claim that [Processor.Claim] made in
// this transaction, for duplicates to get it as Claim.Result. It is optional.
func (p *Processor) Complete(ctx context.Context, tx pgx.Tx, ev Event, result []byte) error {
	return p.completeOne(ctx, statement.On(tx), ev, result)
}

// completeOne finds the claim again. One by arrival has the same ids as before:
// the time of arrival is that of the transaction.
func (p *Processor) completeOne(ctx context.Context, q statement.Queries, ev Event, result []byte) error {
	pl, err := (&look{processor: p, q: q.Queries}).plan(ctx, &ev)
	if err != nil {
		return fmt.Errorf("complete %s: %w", ev.Key, err)
	}
	return p.complete(ctx, q, ev, result, slices.Concat([]uuid.UUID{p.claimID(ev)}, pl.ids, pl.known))
}

var errNoClaim = errors.New("there is no claim; call Claim first, in the same transaction")

// complete stores a result under every id of the claim: a duplicate by arrival
// may meet any of them.
func (p *Processor) complete(ctx context.Context, q statement.Queries, ev Event, result []byte, ids []uuid.UUID) error {
	if !json.Valid(result) {
		return fmt.Errorf("complete %s: the result is not JSON", ev.Key)
	}
	n, err := q.ByID.CompleteClaims(ctx, consumerdb.CompleteClaimsParams{Result: string(result), ConsumerGroup: p.group, EventIds: consumerdb.Texts(ids)})
	if err == nil && n == 0 {
		err = errNoClaim
	}
	if err != nil {
		return fmt.Errorf("complete %s: %w", ev.Key, err)
	}
	return nil
}

// ClaimSQL is [Processor.Claim] for database/sql and what is built on it, with
// pgx's stdlib or lib/pq as the driver. Of sqlx, bun and gorm give the *sql.Tx
// inside of their transactions.
func (p *Processor) ClaimSQL(ctx context.Context, tx *sql.Tx, ev Event) (Claim, error) {
	if err := ev.validate(); err != nil {
		return Claim{}, err
	}
	if _, err := tx.ExecContext(ctx, p.bounds.All); err != nil {
		return Claim{}, fmt.Errorf("claim %s: bound the transaction: %w", ev.Key, err)
	}
	return p.claimIn(ctx, statement.OnSQL(tx), ev)
}

// CompleteSQL is [Processor.Complete] for database/sql.
func (p *Processor) CompleteSQL(ctx context.Context, tx *sql.Tx, ev Event, result []byte) error {
	return p.completeOne(ctx, statement.OnSQL(tx), ev, result)
}
