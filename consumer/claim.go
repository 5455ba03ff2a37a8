package consumer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/outbox"
)

// Claim is what [Processor.Claim] found.
type Claim struct {
	// Outcome is Processed when the claim is new: it counts when, and only
	// when, the transaction commits. Otherwise Duplicate, InProgress,
	// Mismatch, or DeadLettered for an event that was given up before.
	Outcome Outcome
	// AppliedAt is when the event was applied first, or given up; zero when
	// Processed or InProgress.
	AppliedAt time.Time
	// Result is what [Processor.Complete] stored the first time, JSON; nil
	// unless Duplicate, and when nothing was stored.
	Result []byte
	// Mismatch carries both fingerprints; nil unless the outcome is Mismatch.
	Mismatch *MismatchError
}

// Claim claims the event for the group inside the caller's own transaction;
// [Router.Handle] does it for handlers. Apply the effect in the same
// transaction if and only if the outcome is [Processed], then commit.
//
// It blocks while another transaction holds the claim, up to
// Config.LockTimeout, after which the outcome is [InProgress] and the
// transaction is aborted: roll back and try again later. Both timeouts of
// [Config] and synchronous_commit = on hold for the rest of the transaction.
//
// Any error aborts the transaction. It matches [ErrNoPartition] when no
// partition covers the key's time; see [IsInfrastructure] for the others. In
// REPEATABLE READ and SERIALIZABLE a duplicate may be such an error (40001)
// first, and a Duplicate when the transaction is tried again.
//
// A transaction that claims several events must claim them in the order of
// their UUIDs: two that claim in opposite order deadlock.
//
// A replay in the mode [ReplayReprocess] for this group is claimed under its
// replay id, so that it is applied once more, and once only; for every other
// group it is a copy of the original event.
func (p *Processor) Claim(ctx context.Context, tx pgx.Tx, ev Event) (Claim, error) {
	if err := ev.validate(); err != nil {
		return Claim{}, err
	}
	if _, err := tx.Exec(ctx, p.settings); err != nil {
		return Claim{}, fmt.Errorf("claim %s: bound the transaction: %w", ev.Key, err)
	}
	return p.claim(ctx, tx, ev)
}

// claim is Claim in a transaction that is bounded already.
//
// The row of a duplicate is read in a second statement. One statement that
// inserts and reads sees, when it had to wait for the other transaction,
// neither its own row nor the other one.
func (p *Processor) claim(ctx context.Context, tx pgx.Tx, ev Event) (Claim, error) {
	given := FingerprintOf(ev)
	q := consumerdb.New(tx)
	id := p.claimID(ev)
	inserted, err := q.ClaimEvent(ctx, consumerdb.ClaimEventParams{
		EventID:       id,
		ConsumerGroup: p.group,
		EventType:     ev.Type,
		Namespace:     ev.Key.Namespace(),
		Fingerprint:   given[:],
		Outcome:       outcomeProcessed,
	})
	switch {
	case hasCode(err, "55P03"):
		return Claim{Outcome: InProgress}, nil
	case err != nil:
		return Claim{}, claimError(ev, id, err)
	case inserted == 1:
		return Claim{Outcome: Processed}, nil
	}
	row, err := q.FindClaim(ctx, consumerdb.FindClaimParams{EventID: id, ConsumerGroup: p.group})
	if errors.Is(err, pgx.ErrNoRows) {
		// Taken back between the two statements: the next try will tell.
		err = &infrastructureError{errors.New("the claim that was in the way is gone")}
	}
	if err != nil {
		return Claim{}, fmt.Errorf("claim %s: read the claim that is there: %w", ev.Key, err)
	}
	return compare(ev, given, row), nil
}

// What processed_events.outcome says: the event was applied, or given up.
const (
	outcomeProcessed = "p"
	outcomeDead      = "d"
)

func compare(ev Event, given Fingerprint, row consumerdb.FindClaimRow) Claim {
	if bytes.Equal(row.Fingerprint, given[:]) && row.Outcome == outcomeDead {
		return Claim{Outcome: DeadLettered, AppliedAt: row.ProcessedAt}
	}
	if bytes.Equal(row.Fingerprint, given[:]) {
		return Claim{Outcome: Duplicate, AppliedAt: row.ProcessedAt, Result: row.Result}
	}
	mismatch := &MismatchError{Key: ev.Key, Given: given, AppliedAt: row.ProcessedAt}
	copy(mismatch.Stored[:], row.Fingerprint)
	return Claim{Outcome: Mismatch, AppliedAt: row.ProcessedAt, Mismatch: mismatch}
}

// claimID is the id under which the group claims the event.
func (p *Processor) claimID(ev Event) uuid.UUID {
	if ev.ReplayMode == ReplayReprocess && ev.ReplayGroup == p.group {
		return ev.ReplayID
	}
	return ev.Key.UUID()
}

func claimError(ev Event, id uuid.UUID, err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "23514" && pg.SchemaName == "onceward" && pg.ConstraintName == "" {
		return fmt.Errorf("claim %s: %w: %s; run `outboxctl partitions maintain`: %w",
			ev.Key, ErrNoPartition, outbox.IDTime(id).Format(time.RFC3339), err)
	}
	return fmt.Errorf("claim %s: %w", ev.Key, err)
}
