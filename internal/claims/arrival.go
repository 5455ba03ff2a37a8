package claims

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/outbox"
)

// ByArrival is what the column keyed of onceward.dedup_windows says of a class that
// claims by arrival.
const ByArrival = "arrival"

// IDs returns the two ids under which an event is claimed by arrival, in
// buckets of a length: those of the ends of the bucket that the given time lies in
// and of the one after. It is pure.
//
// Two copies that arrive within one length of one another are in the same or in
// neighbouring buckets, so that their pairs share an id, on which the second
// claim conflicts, whether the first is committed or still under way. The ids
// are UUIDs of version 8 with the bucket's end as event time, and so live in
// the partitions of processed_events like any other; the end lies ahead, where
// partitions are made beforehand and none was dropped.
func IDs(id uuid.UUID, length time.Duration, at time.Time) [2]uuid.UUID {
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

// The longest buckets: of what comes late, and of a class by arrival.
const (
	maxLateBucket = 7 * 24 * time.Hour
	MaxBucket     = 31 * 24 * time.Hour
)

// BucketOf returns how long the buckets of a class are when it is registered, or
// when its window is changed by command. It is pure.
func BucketOf(keyed string, window time.Duration) time.Duration {
	if keyed == ByArrival {
		return min(window, MaxBucket)
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
func BucketsOf(keyed string, window, length, old time.Duration, until *time.Time) Buckets {
	switch {
	case length == 0:
		return Buckets{Length: BucketOf(keyed, window), Old: window,
			OldUntil: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}
	case old == 0 || until == nil:
		return Buckets{Length: length}
	}
	return Buckets{Length: length, Old: old, OldUntil: *until}
}

// Then returns the buckets in which was claimed at an earlier instant than now: before the last
// change those of before it alone, so far as is known, and in the hour by which a day may be
// longer than 24 both. It is pure.
func (b Buckets) Then(at, now time.Time) Buckets {
	if b.Old > 0 && at.Before(now) && at.Before(b.OldUntil.Add(-2*b.Old-25*time.Hour)) {
		return Buckets{Length: b.Old}
	}
	return b
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

// LengthsAt returns those of the buckets in which is claimed at the given time.
func (b Buckets) LengthsAt(at time.Time) []time.Duration {
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
			if slices.Contains(attached, PartitionOf(old)) && !slices.Contains(ids, old) {
				ids = append(ids, old)
			}
		}
	}
	return Sorted(ids)
}

// Ever returns all ids under which may be claimed what arrived at an instant, in
// these buckets and in those before them. It is pure.
func (b Buckets) Ever(id uuid.UUID, at time.Time) (ids []uuid.UUID) {
	for _, length := range b.Lengths() {
		ids = append(ids, bucketIDs(id, length, at, 0, 1, 2)...)
	}
	return ids
}
