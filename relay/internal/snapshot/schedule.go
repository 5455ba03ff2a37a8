package snapshot

import (
	"math/rand/v2"
	"time"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/outboxdb"
)

// Schedule decides when to take a snapshot of the database, and which one is
// published. A snapshot S is published when every transaction visible in it has
// ended: an event with transaction id x is then in Kafka (or a dead letter) if
// and only if x is visible in S. That answers published or pending for any row,
// exactly, and no row of the outbox is ever updated.
//
// The way: take S, then write a marker into the log. Every transaction that S
// sees has its commit before the marker, so when the marker was read and
// everything read before it has ended, S is published. It is pure, and used by
// the one goroutine that writes checkpoints.
type Schedule struct {
	Nonce  uint64 // of its markers
	Last   uint64 // id of the marker emitted last
	Events uint64 // read when the last snapshot was taken
	Asked  bool   // the next tick takes one in any case

	pending []taken // oldest first
	began   bool
	unseen  []uint64 // transactions that were read and that no snapshot has seen yet
}

// taken is a snapshot whose marker is on its way.
type taken struct {
	id uint64
	Snapshot
}

// Snapshot is a pg_snapshot in text form, when it was taken, and the
// attachings of partitions that it sees.
type Snapshot struct {
	Text       string
	At         time.Time
	Attachings []int64
}

// Of returns the snapshot that PostgreSQL has taken.
func Of(row outboxdb.TakeSnapshotRow) Snapshot {
	return Snapshot{Text: row.Snapshot, At: row.TakenAt, Attachings: row.Attachings}
}

// maxPending bounds the snapshots in memory: while the sink stalls, one per tick
// would pile up, and the oldest and the newest serve as well.
const maxPending = 16

// NewSchedule returns that of a session, by which one is due at once.
func NewSchedule() *Schedule {
	return &Schedule{Nonce: rand.Uint64(), Asked: true} //nolint:gosec // G404: tells runs apart, keeps nobody out
}

// Due reports whether a snapshot should be taken now: something was read since
// the last one, or it sees what the last one did not see though it was read, or
// somebody asked.
func (s *Schedule) Due(events uint64, asked bool) bool {
	s.Asked = s.Asked || asked
	return (s.Asked || events != s.Events) && len(s.pending) < maxPending
}

// Sees is told of every snapshot, taken or not, with the transactions that were
// read before it since the last one. One that sees something for the first time
// is due. At the start of a session nobody knows what was read before: all that
// is open may have been.
func (s *Schedule) Sees(snapshot string, read []uint64) {
	if !s.began {
		s.began = true
		read = append(read, openAt(snapshot)...)
	}
	before := len(s.unseen)
	s.unseen = left(s.unseen, snapshot)
	s.Asked = s.Asked || len(s.unseen) < before
	s.unseen = left(append(s.unseen, read...), snapshot)
}

// Next returns the marker for a snapshot that is about to be taken, with events
// read before it.
func (s *Schedule) Next(events uint64) cdc.Marker {
	s.Last++
	s.Events, s.Asked = events, false
	return cdc.Marker{Nonce: s.Nonce, ID: s.Last}
}

// Took remembers the snapshot that was taken before its marker was written.
func (s *Schedule) Took(m cdc.Marker, of Snapshot) {
	s.pending = append(s.pending, taken{m.ID, of})
}

// Published returns the newest snapshot whose marker was reached, and forgets it
// and the older ones; ok is false when there is none.
func (s *Schedule) Published(marked uint64) (newest Snapshot, ok bool) {
	for len(s.pending) > 0 && s.pending[0].id <= marked {
		newest, ok = s.pending[0].Snapshot, true
		s.pending = s.pending[1:]
	}
	return newest, ok
}
