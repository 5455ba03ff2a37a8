package consumer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/outbox"
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

	ids []uuid.UUID // of a claim that is new
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
	if _, err := tx.Exec(ctx, p.settings); err != nil {
		return Claim{}, fmt.Errorf("claim %s: bound the transaction: %w", ev.Key, err)
	}
	return p.claim(ctx, tx, ev)
}

// claim is Claim in a transaction that is bounded already.
func (p *Processor) claim(ctx context.Context, tx pgx.Tx, ev Event) (Claim, error) {
	return p.claimWith(ctx, consumerdb.New(tx), ev)
}

func (p *Processor) claimWith(ctx context.Context, q claimQueries, ev Event) (Claim, error) {
	pl, err := (&look{processor: p, q: q}).plan(ctx, &ev)
	if err != nil {
		return Claim{}, fmt.Errorf("claim %s: %w", ev.Key, err)
	}
	given := FingerprintOf(ev)
	if len(pl.ids) == 0 {
		return p.refused(ctx, q, ev, given, pl)
	}
	taken, err := p.insert(ctx, q, ev, given, pl.ids)
	switch {
	case hasCode(err, "55P03"):
		return Claim{Outcome: InProgress}, nil
	case err != nil:
		return Claim{}, p.claimError(ev, pl.ids[0], err)
	case !taken:
		return p.claimTaken(ctx, q, ev, given, pl.ids)
	}
	return Claim{Outcome: Processed, Late: pl.late, Unprotected: pl.again, ids: pl.ids}, nil
}

// insert claims under all of the ids, or under none. Several are inserted in
// their order: see [Processor.Claim] on deadlocks.
func (p *Processor) insert(ctx context.Context, q claimQueries, ev Event, given Fingerprint, ids []uuid.UUID) (bool, error) {
	for i, id := range ids {
		inserted, err := q.ClaimEvent(ctx, consumerdb.ClaimEventParams{
			EventID: id, ConsumerGroup: p.group, EventType: ev.Type, Namespace: ev.Key.Namespace(),
			Fingerprint: given[:], Outcome: outcomeProcessed,
		})
		if err != nil {
			return false, err
		}
		if inserted == 1 {
			continue
		}
		for _, mine := range ids[:i] {
			if err := q.DeleteClaim(ctx, consumerdb.DeleteClaimParams{EventID: mine, ConsumerGroup: p.group}); err != nil {
				return false, err
			}
		}
		return false, nil
	}
	return true, nil
}

// compareStored reads the claim that is in the way, in a second statement. One
// that inserts and reads sees, when it had to wait for the other transaction,
// neither its own row nor the other one.
func (p *Processor) compareStored(ctx context.Context, q claimQueries, ev Event, given Fingerprint, ids []uuid.UUID) (Claim, error) {
	for _, id := range ids {
		row, err := q.FindClaim(ctx, consumerdb.FindClaimParams{EventID: id, ConsumerGroup: p.group})
		if err == nil {
			return p.compare(ev, given, row), nil
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return Claim{}, fmt.Errorf("claim %s: read the claim that is there: %w", ev.Key, err)
		}
	}
	// Taken back between the two statements: the next try will tell.
	return Claim{}, fmt.Errorf("claim %s: %w", ev.Key, errClaimGone)
}

var errClaimGone error = &infrastructureError{errors.New("the claim that was in the way is gone")}

// refused is the claim of an event that may not be claimed. It may turn out to
// be a mere duplicate: of one whose day is still there, or of a late one.
func (p *Processor) refused(ctx context.Context, q claimQueries, ev Event, given Fingerprint, pl plan) (Claim, error) {
	c, err := p.compareStored(ctx, q, ev, given, pl.known)
	if errors.Is(err, errClaimGone) {
		return Claim{Outcome: pl.outcome, Late: pl.late}, nil
	}
	return c, err
}

// What processed_events.outcome says: the event was applied, or given up.
const (
	outcomeProcessed = "p"
	outcomeDead      = "d"
)

// compare says what a claim that is there means for an event.
func (p *Processor) compare(ev Event, given Fingerprint, row consumerdb.FindClaimRow) Claim {
	if bytes.Equal(row.Fingerprint, given[:]) && row.Outcome == outcomeDead {
		return Claim{Outcome: DeadLettered, AppliedAt: row.ProcessedAt}
	}
	if bytes.Equal(row.Fingerprint, given[:]) {
		p.ages.add(ev.Type, p.age(&ev, row.ProcessedAt))
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

// claimError names the partition that is missing. The claim's own constraints
// cannot fail otherwise with this code.
func (p *Processor) claimError(ev Event, id uuid.UUID, err error) error {
	if hasCode(err, "23514") {
		p.windows.forget() // it may be gone because its floor was raised
		return fmt.Errorf("claim %s: %w: %s; run `outboxctl partitions maintain --side consumer`: %w",
			ev.Key, ErrNoPartition, outbox.IDTime(id).Format(time.RFC3339), err)
	}
	return fmt.Errorf("claim %s: %w", ev.Key, err)
}

func compareIDs(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }
