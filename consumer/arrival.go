package consumer

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/outbox"
)

// ArrivalIDs returns the two ids under which an event is claimed by arrival, in
// buckets of a length: those of the ends of the bucket that the given time lies in
// and of the one after. It is pure.
//
// Two copies that arrive within one length of one another are in the same or in
// neighbouring buckets, so that their pairs share an id, on which the second
// claim conflicts, whether the first is committed or still under way. The ids
// are UUIDs of version 8 with the bucket's end as event time, and so live in
// the partitions of processed_events like any other; the end lies ahead, where
// partitions are made beforehand and none was dropped.
func ArrivalIDs(id uuid.UUID, length time.Duration, at time.Time) [2]uuid.UUID {
	ids := bucketIDs(id, length, at, 1, 2)
	return [2]uuid.UUID{ids[0], ids[1]}
}

// bucketIDs returns the ids of starts of buckets, counted from that of the given
// time.
func bucketIDs(id uuid.UUID, length time.Duration, at time.Time, buckets ...int64) (ids []uuid.UUID) {
	ms := length.Milliseconds()
	sum := sha256.Sum256(append([]byte("onceward arrival "), id[:]...))
	for _, n := range buckets {
		ids = append(ids, arrivalID((at.UnixMilli()/ms+n)*ms, sum))
	}
	return ids
}

func arrivalID(start int64, sum [sha256.Size]byte) uuid.UUID {
	id := outbox.FirstID(time.UnixMilli(start))
	copy(id[6:], sum[:])
	id[6] = 0x80 | id[6]&0x0f // version 8
	binary.BigEndian.PutUint64(id[8:], binary.BigEndian.Uint64(id[8:])&^(3<<62)|1<<63)
	return id
}

// Lengths of buckets.
const (
	maxLateBucket    = 7 * 24 * time.Hour
	maxArrivalBucket = 31 * 24 * time.Hour
)

// BucketOf returns how long the buckets of a class are when it is registered, or
// when its window is changed by command. It is pure.
func BucketOf(keyed Keying, window time.Duration) time.Duration {
	if keyed == ByArrival {
		return min(window, maxArrivalBucket)
	}
	return min(window, maxLateBucket)
}

// Buckets are those in which a class claims what it claims by arrival, as
// onceward.dedup_windows has them.
type Buckets struct {
	// Length of a bucket: copies that arrive within it of one another meet.
	Length time.Duration
	// Old is the length before the last change, in which everything is claimed as
	// well until OldUntil. Zero: there was none.
	Old      time.Duration
	OldUntil time.Time
}

// BucketsOf reads the columns of a class; zero and nil stand for NULL. Where no
// program of this release has registered the class, those that claim have buckets
// of one window. It is pure.
func BucketsOf(keyed Keying, window, length, old time.Duration, until *time.Time) Buckets {
	switch {
	case length == 0:
		return Buckets{Length: BucketOf(keyed, window), Old: window, OldUntil: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}
	case old == 0 || until == nil:
		return Buckets{Length: length}
	}
	return Buckets{Length: length, Old: old, OldUntil: *until}
}

// Changing reports whether a copy may come, or be on its way, that is claimed in
// the old buckets only.
func (b Buckets) Changing(at time.Time) bool { return b.Old > 0 && at.Before(b.OldUntil) }

// Lengths returns those of the buckets that there are and were, in which claims may be.
func (b Buckets) Lengths() []time.Duration {
	if b.Old == 0 || b.Old == b.Length {
		return []time.Duration{b.Length}
	}
	return []time.Duration{b.Length, b.Old}
}

// lengthsAt returns those of the buckets in which is claimed at the given time.
func (b Buckets) lengthsAt(at time.Time) []time.Duration {
	if !b.Changing(at) {
		return []time.Duration{b.Length}
	}
	return b.Lengths()
}

// IDs returns the ids under which an event that arrives at the given time is
// claimed, in their order; attached are the partitions of processed_events by
// name, which count while the buckets change. It is pure.
//
// An old id whose partition is not there is left out: nothing is claimed under it,
// and nothing can be. The start of the old bucket is among them, because releases
// before the buckets were kept claimed under the starts of a bucket and of the next.
func (b Buckets) IDs(id uuid.UUID, at time.Time, attached []string) []uuid.UUID {
	ids := bucketIDs(id, b.Length, at, 1, 2)
	if b.Changing(at) {
		for _, old := range bucketIDs(id, b.Old, at, 0, 1, 2) {
			if slices.Contains(attached, partitionOf(old)) && !slices.Contains(ids, old) {
				ids = append(ids, old)
			}
		}
	}
	return sorted(ids)
}

// partitionOf is the name of the partition that an id lies in.
func partitionOf(id uuid.UUID) string {
	return partition.OfDay(processedTable, outbox.IDTime(id)).Name
}

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
			if slices.Contains(l.attached, partitionOf(other)) && !slices.Contains(ids, other) {
				ids = append(ids, other)
			}
		}
	}
	return sorted(ids), nil
}

// others are the buckets of the other classes of the group that an event type falls
// into, for a version of the program that has not the same ones: one that works beside
// this one, or did before. One that was retired counts for as long as its claims may.
func (l *look) others(class int, eventType string) (out []Buckets) {
	own, lengths := l.processor.windows.classes[class], l.classes[class].buckets.lengthsAt(l.began)
	for i := range l.all {
		row := &l.all[i]
		b := registeredOf(row).buckets
		gone := row.RetiredAt != nil && l.began.After(row.RetiredAt.Add(2*slices.Max(b.Lengths())))
		if row.Class == own.Pattern || gone || Keying(row.Keyed) != own.Keyed || !(Class{Pattern: row.Class}).matches(eventType) {
			continue
		}
		if slices.ContainsFunc(b.lengthsAt(l.began), func(length time.Duration) bool { return !slices.Contains(lengths, length) }) {
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
		length = min(length, slices.Min(b.lengthsAt(l.began)))
	}
	if age := l.now.Sub(l.began); age > length/2 {
		return fmt.Errorf("%w: it began %s ago, buckets are %s long; claim within half of that, best before any other work", ErrOldTransaction, age.Round(time.Millisecond), length)
	}
	return nil
}
