package claims

import (
	"bytes"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/outbox"
)

// Name is the partitioned table without its schema, Table with it; the partitions
// are in the same one.
const (
	Name  = "processed_events"
	Table = "onceward." + Name
)

// Lock is the advisory lock of the one maintainer of a database, "consumpt" in ASCII.
const Lock int64 = 0x636f6e73756d7074

// FloorsKept is for how long a process trusts the floors of its classes that it has
// read. A floor that is too low is safe as long as the partition is there, so that one
// goes only when the floor above it has stood for longer: FloorSettles.
const (
	FloorsKept   = 10 * time.Second
	FloorSettles = time.Minute
)

// PartitionOf is the name of the partition that an id lies in.
func PartitionOf(id uuid.UUID) string {
	return partition.OfDay(Name, outbox.IDTime(id)).Name
}

// Compare is the order of ids in which every transaction claims.
func Compare(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }

// Sorted puts ids into that order, and returns them.
func Sorted(ids []uuid.UUID) []uuid.UUID {
	slices.SortFunc(ids, Compare)
	return ids
}
