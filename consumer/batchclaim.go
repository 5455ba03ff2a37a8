package consumer

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/consumerdb"
)

// event is the event as its handler gets it.
func (it *item) event() Event {
	ev := it.ev
	ev.Late, ev.Unprotected = it.plan.late, it.plan.again
	return ev
}

// claim claims all items with one statement, and says of each whether it is
// fresh, and if not, what it is. The rows of those that are not are read in a
// second statement: see Processor.compareStored.
func (b *batch) claim(ctx context.Context, tx pgx.Tx, items []*item) error {
	q := consumerdb.New(tx)
	first, err := b.plan(ctx, q, items)
	if err != nil {
		return err
	}
	extra, err := b.insert(ctx, q, first)
	if err != nil {
		return err
	}
	if len(extra) > 0 {
		if err := b.delete(ctx, tx, extra); err != nil {
			return err
		}
	}
	stored, err := b.stored(ctx, q, first)
	if err != nil {
		return err
	}
	for _, it := range items {
		owner := first[it.id]
		switch {
		case it.fresh:
		case owner.fresh && owner.fingerprint == it.fingerprint:
			it.outcome = Duplicate // of one in this very batch
		case owner.fresh:
			it.judge(Claim{Outcome: Mismatch, Mismatch: &MismatchError{Key: it.ev.Key, Stored: owner.fingerprint, Given: it.fingerprint}})
		default:
			if err := b.settle(it, owner, stored); err != nil {
				return err
			}
		}
	}
	return nil
}

// plan judges the items and returns the first of each id.
func (b *batch) plan(ctx context.Context, q *consumerdb.Queries, items []*item) (map[uuid.UUID]*item, error) {
	l := &look{processor: b.router.processor, q: q}
	first := make(map[uuid.UUID]*item, len(items))
	for _, it := range items {
		if first[it.id] != nil {
			continue
		}
		var err error
		if it.plan, err = l.plan(ctx, &it.ev); err != nil {
			return nil, err
		}
		first[it.id] = it
	}
	return first, nil
}

// insert claims under the ids of all plans, in their order, in which every
// transaction claims: two that claim in opposite orders deadlock. It returns the
// claims of items that could not be claimed under all of their ids.
func (b *batch) insert(ctx context.Context, q *consumerdb.Queries, first map[uuid.UUID]*item) (extra []uuid.UUID, err error) {
	p := b.claimParams(first)
	if len(p.EventIds) == 0 {
		return nil, nil
	}
	inserted, err := q.ClaimEvents(ctx, p)
	if err != nil {
		if hasCode(err, "23514") {
			b.router.processor.windows.forget()
		}
		if hasCode(err, "23514") || hasCode(err, "55P03") {
			return nil, errAlone // one has no partition, or its claim is held elsewhere
		}
		return nil, fmt.Errorf("claim %d events: %w", len(first), err)
	}
	mine := make(map[uuid.UUID]bool, len(inserted))
	for _, id := range inserted {
		mine[id] = true
	}
	for _, it := range first {
		got := slices.DeleteFunc(slices.Clone(it.plan.ids), func(id uuid.UUID) bool { return !mine[id] })
		if it.fresh = len(got) > 0 && len(got) == len(it.plan.ids); !it.fresh {
			extra = append(extra, got...)
		}
	}
	return extra, nil
}

// claimParams are the claims of the items in the order of their ids.
func (b *batch) claimParams(first map[uuid.UUID]*item) consumerdb.ClaimEventsParams {
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
	slices.SortFunc(rows, func(a, b row) int { return compareIDs(a.id, b.id) })
	p := consumerdb.ClaimEventsParams{ConsumerGroup: b.router.Group()}
	for _, r := range rows {
		p.EventIds = append(p.EventIds, r.id)
		p.EventTypes = append(p.EventTypes, r.it.ev.Type)
		p.Namespaces = append(p.Namespaces, r.it.ev.Key.Namespace())
		p.Fingerprints = append(p.Fingerprints, r.it.fingerprint[:])
	}
	return p
}

// stored reads the claims that were there before, by their ids; of an item that
// may not be claimed those under which it may have been.
func (b *batch) stored(ctx context.Context, q *consumerdb.Queries, first map[uuid.UUID]*item) (map[uuid.UUID]consumerdb.FindClaimsRow, error) {
	var ids []uuid.UUID
	for _, it := range first {
		if !it.fresh {
			ids = append(append(ids, it.plan.ids...), it.plan.known...)
		}
	}
	stored := make(map[uuid.UUID]consumerdb.FindClaimsRow, len(ids))
	if len(ids) == 0 {
		return stored, nil
	}
	rows, err := q.FindClaims(ctx, consumerdb.FindClaimsParams{ConsumerGroup: b.router.Group(), EventIds: ids})
	if err != nil {
		return nil, fmt.Errorf("read the claims that are there: %w", err)
	}
	for _, row := range rows {
		stored[row.EventID] = row
	}
	return stored, nil
}

// settle says what an item is that was not claimed: owner is the first of its id.
func (b *batch) settle(it, owner *item, stored map[uuid.UUID]consumerdb.FindClaimsRow) error {
	for _, id := range slices.Concat(owner.plan.ids, owner.plan.known) {
		if row, ok := stored[id]; ok {
			it.judge(b.router.processor.compare(it.ev, it.fingerprint, consumerdb.FindClaimRow{
				Fingerprint: row.Fingerprint, Outcome: row.Outcome, ProcessedAt: row.ProcessedAt,
			}))
			return nil
		}
	}
	if len(owner.plan.ids) > 0 {
		return errClaimGone
	}
	it.plan, it.outcome = owner.plan, owner.plan.outcome
	return nil
}

func (it *item) judge(c Claim) {
	it.outcome = c.Outcome
	if c.Mismatch != nil {
		it.err = c.Mismatch
	}
}
