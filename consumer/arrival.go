package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/internal/claims"
)

// arrival returns the ids by arrival of this transaction, which arrives when it
// begins: all that it claims has the same, and what it claimed is found again.
func (l *look) arrival(ctx context.Context, id uuid.UUID, eventType string) ([]uuid.UUID, error) {
	class := l.processor.windows.index(eventType)
	b, others := l.classes[class].buckets, l.others(class, eventType)
	if b.Changing(l.began) || len(others) > 0 {
		if err := l.readAttached(ctx); err != nil {
			return nil, err
		}
	}
	ids := b.IDs(id, l.began, l.attached)
	for _, o := range others {
		for _, other := range o.IDs(id, l.began, l.attached) {
			if slices.Contains(l.attached, claims.PartitionOf(other)) && !slices.Contains(ids, other) {
				ids = append(ids, other)
			}
		}
	}
	return claims.Sorted(ids), nil
}

// others are the buckets of the other classes of the group that an event type falls
// into, for a version of the program that has not the same ones: one that works beside
// this one, or did before. One that was retired counts for as long as its claims may.
func (l *look) others(class int, eventType string) (out []claims.Buckets) {
	own, lengths := l.processor.windows.classes[class], l.classes[class].buckets.LengthsAt(l.began)
	for i := range l.all {
		row := &l.all[i]
		b := registeredOf(row).buckets
		gone := row.RetiredAt != nil && l.began.After(row.RetiredAt.Add(2*slices.Max(b.Lengths())))
		if row.Class == own.Pattern || gone || Keying(row.Keyed) != own.Keyed ||
			!(Class{Pattern: row.Class}).matches(eventType) {
			continue
		}
		if slices.ContainsFunc(b.LengthsAt(l.began),
			func(length time.Duration) bool { return !slices.Contains(lengths, length) }) {
			out = append(out, b)
		}
	}
	return out
}

// ErrOldTransaction: the transaction began so long ago that copies which are
// claimed by arrival meanwhile might not meet its claim.
var ErrOldTransaction = errors.New("the transaction is too old to claim by arrival in")

// inTime refuses a claim by arrival whose transaction began half a bucket ago.
func (l *look) inTime(it *item) error {
	if !it.byArrival() {
		return nil
	}
	class := l.processor.windows.index(it.ev.Type)
	length := l.classes[class].buckets.Length
	for _, b := range append(l.others(class, it.ev.Type), l.classes[class].buckets) {
		length = min(length, slices.Min(b.LengthsAt(l.began)))
	}
	if age := l.now.Sub(l.began); age > length/2 {
		return fmt.Errorf("%w: it began %s ago, buckets are %s long; claim within half of that, best before any other work", ErrOldTransaction, age.Round(time.Millisecond), length)
	}
	return nil
}
