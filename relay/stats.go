package relay

import (
	"time"

	"github.com/onceward/onceward/relay/retention"
)

// Stats are the numbers of a relay at one moment. What is counted goes on from
// session to session; what is measured is as the last tick of a session left it.
// Package relayprom shows them to Prometheus.
type Stats struct {
	Relay   string // its name
	State   State
	Waiting []Wait // as in [Health]

	// Events read from the log, copies after a restart included. Each is published,
	// parked, skipped, or rewound, or is in flight.
	Read      uint64
	Published uint64            // acknowledged by all in-sync replicas
	Parked    uint64            // kept as dead letters
	Skipped   map[string]uint64 // ended otherwise, by reason
	Rewound   uint64            // read by sessions that ended before they had
	// Written down because their route could not be used; they count as published, or otherwise, once they have.
	Waited uint64

	Letters  uint64            // dead letters published because an operator retried them
	Controls map[string]uint64 // operators' controls read from the stream, by action

	Sessions        uint64 // that took the slot
	Rewinds         uint64 // of them, those that ended with events in flight
	Checkpoints     uint64 // written
	CheckpointsLost uint64 // sessions that found no usable checkpoint in Kafka
	Transactions    uint64 // of Kafka, committed
	TopicsRemade    uint64 // topics found deleted and made anew

	Delay  Histogram // from commit to acknowledgement, of one event in each
	Commit Histogram // of a Kafka transaction, from the call until it is known
	// Requests counts the records of each produce request, also of one that was sent again:
	// few in each, and events cost most of what they can.
	Requests Histogram

	Lag        time.Duration // age of the oldest transaction that was read and has not ended; 0: there is none
	InFlight   uint64        // events read since the first that has not ended
	QueueBytes int           // read and not handed to the producer
	Confirmed  uint64        // the durable checkpoint, as bytes of log
	Ended      uint64        // the position up to which everything has ended, as bytes of log
	Throttled  time.Time     // until when a broker takes nothing, because a quota is used up; zero: none has asked
	Snapshot   time.Time     // when the published snapshot was taken; zero before the first

	ParkedAggregates int            // whose events wait behind a dead letter
	Held             map[string]int // events that wait, by route; beyond 100 routes the rest is one, others

	Slot SlotStats
	// Days after today that have a partition; -1: this process does not know.
	PartitionsAhead int
	Partitions      map[retention.LeafState]int // of the outbox, after a round of maintenance of this process
}

// SlotStats is what a slot keeps on the server.
type SlotStats struct {
	RetainedBytes int64         // of log
	LagBytes      int64         // of log behind which the slot is confirmed
	SafeBytes     int64         // that may be written before it is lost; -1: nothing limits it
	WALStatus     string        // the server's word; empty before the first look
	Oldest        time.Duration // age of the oldest transaction on the server that has written
}

// Histogram counts durations in seconds, or records.
type Histogram struct {
	Count   uint64
	Sum     float64
	Buckets map[float64]uint64 // how many were so much at most
}
