package consumer

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/outbox"
)

// ArrivalIDs returns the two ids under which an event is claimed by arrival:
// those of the bucket of the given time and of the one after. A bucket is one
// window long. It is pure.
//
// Two copies that arrive within one window of one another are in the same or in
// neighbouring buckets, so that their pairs share an id, on which the second
// claim conflicts, whether the first is committed or still under way. The ids
// are UUIDs of version 8 with the bucket's start as event time, and so live in
// the partitions of processed_events like any other.
func ArrivalIDs(id uuid.UUID, window time.Duration, at time.Time) [2]uuid.UUID {
	length := window.Milliseconds()
	start := at.UnixMilli() / length * length
	sum := sha256.Sum256(append([]byte("onceward arrival "), id[:]...))
	return [2]uuid.UUID{arrivalID(start, sum), arrivalID(start+length, sum)}
}

func arrivalID(start int64, sum [sha256.Size]byte) uuid.UUID {
	id := outbox.FirstID(time.UnixMilli(start))
	copy(id[6:], sum[:])
	id[6] = 0x80 | id[6]&0x0f // version 8
	binary.BigEndian.PutUint64(id[8:], binary.BigEndian.Uint64(id[8:])&^(3<<62)|1<<63)
	return id
}
