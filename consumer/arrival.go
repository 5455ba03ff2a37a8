package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/consumerdb"
)

// arrival returns the ids by arrival of this transaction, which arrives when it
// begins: all that it claims has the same, and what it claimed is found again.
func (l *look) arrival(ctx context.Context, id uuid.UUID, eventType string) ([]uuid.UUID, error) {
	return l.arrivalAt(ctx, id, eventType, l.began)
}

// arrivalAt returns the ids of what arrived at an instant.
func (l *look) arrivalAt(ctx context.Context, id uuid.UUID, eventType string, at time.Time) ([]uuid.UUID, error) {
	class := l.processor.windows.index(eventType)
	b, others := l.classes[class].buckets.Then(at, l.began), l.others(class, eventType, at)
	if b.Changing(at) || len(others) > 0 {
		if err := l.readAttached(ctx); err != nil {
			return nil, err
		}
	}
	ids := b.IDs(id, at, l.attached)
	for _, o := range others {
		for _, other := range o.IDs(id, at, l.attached) {
			if slices.Contains(l.attached, claims.PartitionOf(other)) && !slices.Contains(ids, other) {
				ids = append(ids, other)
			}
		}
	}
	return claims.Sorted(ids), nil
}

// ofLetter plans the redrive of an event that is known by its content: it is claimed where it was when it
// became a letter, so that what says the same by now neither meets that nor is met by it. Ids whose day is gone
// are not needed, nor those of another event that a change of the window since gives one that had its own.
func (l *look) ofLetter(ctx context.Context, ev *Event) (plan, error) {
	if err := l.readAttached(ctx); err != nil {
		return plan{}, err
	}
	ids, err := l.arrivalAt(ctx, l.processor.claimID(*ev), ev.Type, ev.arrived)
	var taken []uuid.UUID
	if err == nil && ev.claimed {
		taken, err = l.q.AppliedAmong(ctx, consumerdb.AppliedAmongParams{ConsumerGroup: l.processor.group,
			EventIds: consumerdb.Texts(ids)})
	}
	gone := func(id uuid.UUID) bool {
		return !slices.Contains(l.attached, claims.PartitionOf(id)) || slices.Contains(taken, id)
	}
	return plan{ids: slices.DeleteFunc(slices.Clone(ids), gone), known: ids}, err
}

// speaks reports whether a letter says something of an item that is known by its content: it
// is that of its record, or arrived so close to it that their claims would meet.
func (l *look) speaks(ctx context.Context, letter *consumerdb.LettersOfClaimRow, it *item) (bool, error) {
	src, topic := it.ev.Source, (&requested{Topic: letter.Topic}).read().Topic
	if src.Topic != "" && topic == src.Topic &&
		letter.KafkaPartition == src.Partition && letter.KafkaOffset == src.Offset &&
		(letter.TopicID == src.TopicID || letter.TopicID == uuid.Nil || src.TopicID == uuid.Nil) {
		return true, nil
	}
	ids, err := l.arrivalAt(ctx, it.id, it.ev.Type, letter.CreatedAt)
	return slices.ContainsFunc(ids, func(id uuid.UUID) bool {
		return slices.Contains(it.plan.ids, id) || slices.Contains(it.plan.known, id)
	}), err
}

// others are the buckets of the other classes of the group that an event type falls
// into, for a version of the program that has not the same ones: one that works beside
// this one, or did before. One that was retired counts for as long as its claims may.
func (l *look) others(class int, eventType string, at time.Time) (out []claims.Buckets) {
	own, lengths := l.processor.windows.classes[class], l.classes[class].buckets.Then(at, l.began).LengthsAt(at)
	for i := range l.all {
		row := &l.all[i]
		b := registeredOf(row).buckets.Then(at, l.began)
		gone := row.RetiredAt != nil && at.After(row.RetiredAt.Add(2*slices.Max(b.Lengths())))
		if row.Class == own.Pattern || gone || Keying(row.Keyed) != own.Keyed ||
			!(Class{Pattern: row.Class}).matches(eventType) {
			continue
		}
		if slices.ContainsFunc(b.LengthsAt(at),
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
	for _, b := range append(l.others(class, it.ev.Type, l.began), l.classes[class].buckets) {
		length = min(length, slices.Min(b.LengthsAt(l.began)))
	}
	if age := l.now.Sub(l.began); age > length/2 {
		return fmt.Errorf("%w: it began %s ago, buckets are %s long; claim within half of that, best before any other work", ErrOldTransaction, age.Round(time.Millisecond), length)
	}
	return nil
}
