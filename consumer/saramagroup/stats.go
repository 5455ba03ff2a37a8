package saramagroup

import (
	"time"

	"github.com/onceward/onceward/consumer"
)

// Snapshot is what one member of a group, one call of [Run], sees of its work.
// The counts begin with Run and only grow.
type Snapshot struct {
	Group string
	// Generation is that of the group's session; 0 between sessions.
	Generation int32
	// Partitions are those assigned to this member now, by topic and number.
	Partitions []PartitionStats
	// Finished counts messages by what became of them. Every outcome that
	// acknowledges is there, most of them with 0.
	Finished map[consumer.Outcome]int64
	// Failed counts deliveries that failed and are tried again. Every kind is
	// there. Deliveries that a session's end cut off are not counted.
	Failed map[FailureKind]int64
	// Rewinds counts partitions that began again because the database had lost
	// commits.
	Rewinds int64
	// ProgressSaved is when marks were last saved in the database; zero before
	// the first time. With nothing finished there is nothing to save, except
	// that a partition was read to its end: about once a minute.
	ProgressSaved time.Time
}

// FailureKind says why deliveries failed.
type FailureKind string

// The kinds of failures.
const (
	FailureHandler        FailureKind = "handler"        // counted as an attempt, see consumer.Retry
	FailureInfrastructure FailureKind = "infrastructure" // consumer.IsInfrastructure, or something is missing: counts for nothing
	FailureInProgress     FailureKind = "in-progress"    // another process holds the claim
)

// PartitionStats is what a member sees of one partition.
type PartitionStats struct {
	Topic     string
	Partition int32
	// Next is the offset up to which everything is finished, itself excluded.
	Next int64
	// HighWater is the end of the partition as Kafka last told it: with messages,
	// and when a partition is looked at that is idle. It counts messages of
	// transactions that are open, aborted ones and markers of transactions.
	HighWater int64
	// Held are the messages that were read and are not finished, HeldBytes their
	// keys, values and headers. InFlight are those of them that are being
	// delivered.
	Held, HeldBytes, InFlight int64
	// WaitingSince is when the first message that is not finished was read; zero
	// when there is none.
	WaitingSince time.Time
}

// Lag is how many offsets are not finished. It is not less than 0.
func (p PartitionStats) Lag() int64 { return max(0, p.HighWater-p.Next) }
