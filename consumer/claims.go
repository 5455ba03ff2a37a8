package consumer

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/consumer/internal/sqlstate"
	"github.com/onceward/onceward/consumer/internal/statement"
	"github.com/onceward/onceward/internal/claims"
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

	ids  []uuid.UUID // of a claim that is new, or of the one that is there
	xact string      // the transaction of a new one that others share
}

// claimant is a member that claims in one transaction.
type claimant struct {
	processor *Processor
	q         statement.Queries
}

// claim claims all items, with one statement, and says of each what it has
// found. The rows of those that are not new are read in a second statement: one
// that inserts and reads sees, when it had to wait for the other transaction,
// neither its own row nor the other one.
//
// When one of several has no partition, or its claim is held elsewhere, the error
// is errAlone; of a single one it is ErrNoPartition or ErrInProgress.
func (c claimant) claim(ctx context.Context, items []*item) error {
	first, err := c.plans(ctx, items)
	if err != nil {
		return err
	}
	all, err := c.insert(ctx, first, len(items) == 1)
	if err != nil {
		return c.claimError(items, err)
	}
	stored, err := c.stored(ctx, first)
	if err != nil {
		return err
	}
	for _, it := range items {
		owner := first[it.id]
		switch {
		case owner == it && it.fresh():
		case owner.fresh() && owner.fingerprint == it.fingerprint:
			// Of one in this very transaction.
			it.plan, it.claim = owner.plan, Claim{Outcome: Duplicate, ids: owner.claim.ids}
		case owner.fresh():
			it.claim = Claim{Outcome: Mismatch, Mismatch: &MismatchError{Key: it.ev.Key, Stored: owner.fingerprint,
				Given: it.fingerprint}}
		case owner != it && len(owner.plan.ids) == 0 && (it.content || owner.fingerprint != it.fingerprint):
			return errAlone // what letters, or a mark, say of the one is nothing of the other
		default:
			if it.plan = owner.plan; !c.found(it, stored) {
				return fmt.Errorf("claim %s: %w", it.ev.Key, errClaimGone)
			}
		}
		if it.ev.redriven && it.claim.Outcome == DeadLettered {
			return c.revive(ctx, it)
		}
	}
	if !all && slices.ContainsFunc(items, (*item).fresh) {
		return c.q.RestoreLockTimeout(ctx) // ClaimEvents did not, because what was in the way had to be looked at
	}
	return nil
}

// plans judges the items and returns the first of each id.
func (c claimant) plans(ctx context.Context, items []*item) (map[uuid.UUID]*item, error) {
	l := &look{processor: c.processor, q: c.q.Queries}
	first := make(map[uuid.UUID]*item, len(items))
	for _, it := range items {
		if first[it.id] != nil {
			continue
		}
		var err error
		if it.plan, err = l.plan(ctx, &it.ev); err == nil {
			err = l.inTime(it)
		}
		if err != nil {
			return nil, fmt.Errorf("claim %s: %w", it.ev.Key, err)
		}
		if err := c.recall(ctx, l, it); err != nil {
			return nil, fmt.Errorf("claim %s: %w", it.ev.Key, err)
		}
		first[it.id] = it
	}
	return first, nil
}

// insert claims under the ids of all plans, in their order, in which every
// transaction claims: two that claim in opposite orders deadlock. An item is
// fresh when it was claimed under all of its ids, or it leaves no claim. All: so
// were those of all items. Where there is nothing to claim, the statement gives the lock
// timeout back all the same.
func (c claimant) insert(ctx context.Context, first map[uuid.UUID]*item, alone bool) (all bool, err error) {
	row := claimParams(c.processor.group, first)
	inserted, xact, err := c.q.Claim(ctx, row, alone)
	if err != nil {
		return false, err
	}
	all = len(inserted) == len(row.EventIds)
	var extra []uuid.UUID
	for _, it := range first {
		mine := it.plan.ids
		if !all {
			mine = slices.DeleteFunc(slices.Clone(mine),
				func(id uuid.UUID) bool { return !slices.Contains(inserted, id.String()) })
		}
		switch {
		case len(mine) == len(it.plan.ids) && (len(mine) > 0 || it.plan.bare()):
			it.claim = Claim{Outcome: Processed, Late: it.plan.late, Unprotected: it.plan.again, ids: mine, xact: xact}
		default:
			extra = append(extra, mine...)
		}
	}
	return all, c.deleteClaims(ctx, extra)
}

func (c claimant) deleteClaims(ctx context.Context, ids []uuid.UUID) error {
	if len(ids) == 0 {
		return nil
	}
	if err := c.q.ByID.DeleteClaims(ctx, consumerdb.DeleteClaimsParams{ConsumerGroup: c.processor.group,
		EventIds: consumerdb.Texts(ids)}); err != nil {
		return fmt.Errorf("take claims back: %w", err)
	}
	return nil
}

// unclaim takes the claims of this transaction back, and forgets what they have found.
func (c claimant) unclaim(ctx context.Context, items []*item) error {
	var ids []uuid.UUID
	for _, it := range items {
		if it.fresh() {
			ids = append(ids, it.claim.ids...)
		}
		it.claim = Claim{}
	}
	return c.deleteClaims(ctx, ids)
}

// holdBack takes back the claims of parked items, and of those that were discarded
// while they were parked: they are not applied. What was applied before is a
// duplicate all the same.
func (c claimant) holdBack(ctx context.Context, items []*item) error {
	var ids []uuid.UUID
	for _, it := range items {
		if (it.parked || it.discarded) && it.fresh() {
			ids = append(ids, it.claim.ids...)
			it.heldBack()
		}
	}
	return c.deleteClaims(ctx, ids)
}

// claimParams are the claims of the items in the order of their ids.
func claimParams(group string, first map[uuid.UUID]*item) consumerdb.ClaimEventsParams {
	type row struct {
		id uuid.UUID
		it *item
	}
	rows := make([]row, 0, len(first))
	for _, it := range first {
		for _, id := range it.plan.ids {
			rows = append(rows, row{id, it})
		}
	}
	slices.SortFunc(rows, func(a, b row) int { return claims.Compare(a.id, b.id) })
	c := consumerdb.ClaimEventsParams{ConsumerGroup: group, EventIds: []string{}} // nil would be NULL
	for _, r := range rows {
		c.EventIds = append(c.EventIds, r.id.String())
		c.EventTypes = append(c.EventTypes, r.it.ev.Type)
		c.Namespaces = append(c.Namespaces, r.it.ev.Key.Namespace())
		c.Fingerprints = append(c.Fingerprints, hex.EncodeToString(r.it.fingerprint[:]))
	}
	return c
}

// stored reads the claims that were there before, by their ids; of an item that
// may not be claimed those under which it may have been.
func (c claimant) stored(ctx context.Context, first map[uuid.UUID]*item) (map[uuid.UUID]consumerdb.FindClaimsRow,
	error) {
	var ids []uuid.UUID
	for _, it := range first {
		if !it.fresh() {
			ids = append(append(ids, it.plan.ids...), it.plan.known...)
		}
	}
	stored := make(map[uuid.UUID]consumerdb.FindClaimsRow)
	if len(ids) == 0 {
		return stored, nil
	}
	rows, err := c.q.ByID.FindClaims(ctx, consumerdb.FindClaimsParams{ConsumerGroup: c.processor.group,
		EventIds: consumerdb.Texts(ids)})
	if err != nil {
		return nil, fmt.Errorf("read the claims that are there: %w", err)
	}
	for _, row := range rows {
		stored[row.EventID] = row
	}
	return stored, nil
}

// found says what an item is that was not claimed. False: a claim was in the way
// and is gone; the next try will tell.
func (c claimant) found(it *item, stored map[uuid.UUID]consumerdb.FindClaimsRow) bool {
	for _, id := range slices.Concat(it.plan.ids, it.plan.known) {
		if row, ok := stored[id]; ok {
			it.claim = c.compare(it, row)
			return true
		}
	}
	it.claim = it.plan.refusal()
	return len(it.plan.ids) == 0
}

var errClaimGone error = &infrastructureError{errors.New("the claim that was in the way is gone")}

// What processed_events.outcome says: the event was applied, or given up.
const (
	outcomeProcessed = "p"
	outcomeDead      = "d"
)

// compare says what a claim that is there means for an event.
func (c claimant) compare(it *item, row consumerdb.FindClaimsRow) Claim {
	there := Claim{Outcome: Duplicate, AppliedAt: row.ProcessedAt, Result: row.Result, ids: []uuid.UUID{row.EventID}}
	switch {
	case !bytes.Equal(row.Fingerprint, it.fingerprint[:]):
		there = Claim{Outcome: Mismatch, AppliedAt: row.ProcessedAt,
			Mismatch: &MismatchError{Key: it.ev.Key, Given: it.fingerprint, AppliedAt: row.ProcessedAt}}
		copy(there.Mismatch.Stored[:], row.Fingerprint)
	case row.Outcome == outcomeDead:
		there.Outcome, there.Result = DeadLettered, nil
	default:
		c.processor.marks.ages.Add(it.ev.Type, c.processor.marks.age(&it.ev, row.ProcessedAt))
	}
	return there
}

// revive claims the event of a letter whose claim says dead: that is taken back
// and made afresh, in one transaction, so that who else wants the event meets one
// or the other.
func (c claimant) revive(ctx context.Context, it *item) error {
	ids := consumerdb.Texts(slices.Concat(it.plan.ids, it.plan.known))
	if err := c.q.ByID.ReviveClaims(ctx, consumerdb.ReviveClaimsParams{ConsumerGroup: c.processor.group,
		EventIds: ids}); err != nil {
		return fmt.Errorf("claim %s: revive the claim of an event that was given up: %w", it.ev.Key, err)
	}
	return c.claim(ctx, []*item{it})
}

// markDead turns the claims of an event into those of a dead one. Its effects, if
// it has some, wait with it.
func (c claimant) markDead(ctx context.Context, it *item) error {
	n, err := c.q.ByID.MarkDead(ctx, consumerdb.MarkDeadParams{ConsumerGroup: c.processor.group,
		EventIds: consumerdb.Texts(it.claim.ids)})
	if err == nil && n != int64(len(it.claim.ids)) {
		err = errors.New("the claim is gone")
	}
	if err == nil && it.handler.fn != nil {
		_, err = c.q.MarkEffectsStuck(ctx, consumerdb.MarkEffectsStuckParams{
			EventID: it.ev.Key.UUID(), ConsumerGroup: c.processor.group, Why: "the event was given up; redrive its dead letter, or discard it",
		})
	}
	if err != nil {
		return fmt.Errorf("mark the claim as dead: %w", err)
	}
	return nil
}

// claimError says what keeps a claim from being made. The claim's own constraints
// cannot fail otherwise with these codes.
func (c claimant) claimError(items []*item, err error) error {
	missing := sqlstate.Is(err, "23514")
	if missing {
		c.processor.windows.forget() // it may be gone because its floor was raised
	}
	switch {
	case (missing || sqlstate.Is(err, "55P03") || sqlstate.Is(err, "57014")) && len(items) > 1: // or it had no time to wait so long
		return errAlone
	case missing:
		return noPartition(items[0])
	case sqlstate.Is(err, "55P03"):
		return ErrInProgress
	}
	return fmt.Errorf("claim %d events, the first %s: %w", len(items), items[0].ev.Key, err)
}

// noPartition names the partition that is missing.
func noPartition(it *item) error {
	days := outbox.IDTime(it.id).Format(time.RFC3339)
	if n := len(it.plan.ids); n > 0 {
		days = outbox.IDTime(it.plan.ids[0]).Format(time.RFC3339)
		if n > 1 { // by arrival
			days += " or " + outbox.IDTime(it.plan.ids[n-1]).Format(time.RFC3339)
		}
	}
	return fmt.Errorf("claim %s: %w: %s; run `outboxctl partitions maintain --side consumer`", it.ev.Key, ErrNoPartition, days)
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
	if pl.bare() {
		return nil
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
	n, err := c.q.ByID.CompleteClaims(ctx, consumerdb.CompleteClaimsParams{Result: string(result),
		ConsumerGroup: c.processor.group, EventIds: consumerdb.Texts(ids)})
	if err == nil && n == 0 {
		err = errNoClaim
	}
	if err != nil {
		return fmt.Errorf("complete %s: %w", ev.Key, err)
	}
	return nil
}
