// Package relay publishes the outbox of one PostgreSQL database, through one
// replication slot, to one Kafka cluster. It joins package cdc (the log) and
// package publisher (the topic), which know nothing of one another.
//
// # Guarantee
//
// Every event whose transaction committed after the slot was made ends once:
// published, kept as a dead letter, or skipped by a recorded command of an operator;
// events of one aggregate in commit order. How often it is published depends on
// the mode:
//
//   - idempotent: at least once. A position is checkpointed in
//     onceward.relay_state only after everything before it has ended. A copy that
//     a crash makes has the same key, bytes, partition and headers, but for the
//     header position.
//   - exactly-once: once for consumers with isolation.level=read_committed. Events
//     and checkpoint are one Kafka transaction; relay_state follows as a lower
//     bound.
//
// In both the slot is confirmed only up to a checkpoint that is durable.
//
// # States
//
//	connecting ──> streaming ──> stopped
//	   ^  │         │  ^  │
//	   │  │         v  │  │
//	   │  │  paused, halted
//	   │  │               │
//	   │  ├─> standby ────┤   the slot has another holder; looked at every second
//	   │  ├─> halted ─────┤   an operator is needed; tried again every few seconds
//	   │  │               │
//	   └──┴── backoff <───┘   a connection broke; tried again, with jitter
//
// A relay is halted in one of two ways. Where an operator's command is awaited (a
// poison event whose route says halt) it keeps its slot and polls for it.
// An error that trying again cannot mend gives the slot back, and the start is
// tried again until it is mended; or it ends [Relay.Run], with
// [Config].ExitOnHalt. The slot's position moves in neither.
//
// # What waits says so
//
// One state of health is computed in one place ([Health]) and shown by the log
// (after 10 seconds, 1, 5 and 30 minutes, then every 30, and when it is over), by
// /readyz, by onceward_waiting and by the process's row of onceward.relay_health,
// from which outboxctl status has it. That row is written when something changes:
// an idle relay writes nothing, because under archive_timeout each write costs a
// segment of log. Every step of a session's start has a deadline but those that
// wait for transactions of others.
//
// A route that is missing, forbidden or paused is no state: its lane is held, and
// the others go on. So is a type of aggregate of which too many are parked. A
// lane is all aggregates of one type, so that an aggregate's
// events stay in order wherever its route leads. What is held is written down in
// onceward.waiting before a checkpoint passes it, and has ended for the stream:
// it costs the slot, the published snapshot, a restart and the memory nothing.
// Once the route can be used, a release publishes what waits, lane by lane, from
// the table, while the stream goes on; what the stream brings for the lane goes
// behind. An event passes its route's lane first, the park of its aggregate second.
//
// # Who owns what
//
// [Relay.Run] runs one session after the other. A session has one replication
// connection (of the cdc.Reader's goroutine), one ordinary connection of the
// checkpoint's goroutine, one of the pump's, which writes letters, and one
// producer. Whatever breaks, all are thrown away and the next session starts from
// the checkpoint: re-sending one failed message would reorder its key.
//
// # Rooms
//
// Here are the shopfront (relay.go, config.go, admin.go, stats.go, and the numbers behind
// it) and the life of sessions: the order in which one is opened (open.go, opening.go,
// switch.go, cluster.go), what it does at every tick (checkpoint.go, snapshots.go, health.go,
// kafkatopics.go), what is between two (relay.go, reason.go), and what the process says
// of itself (vitals.go, watch.go, reminders.go, lookout.go). A session's checkpoint is no
// type of its own: its opening, its pump and its end each read or set most of the fields.
//
// What a session does stands apart: package beginning finds where it may begin, stream
// moves events and says what becomes of each, letters keeps what cannot be published,
// state is the relay's row and its slot, snapshot knows who sees what, retry how long to
// wait between two sessions, and internal/ledger how far everything has ended.
// Packages retention, config and relayprom are for whoever wants them.
//
// # What is not obvious
//
//   - The slot is the only arbiter. The epoch, the producer and the checkpoint come
//     after START_REPLICATION, in this order; a standby that made a producer would
//     fence the healthy owner. So would a session that lost the slot while it asks
//     for its producer, which takes many tries: it looks at the epoch meanwhile.
//   - Before START_REPLICATION an advisory lock of the slot arbitrates: who begins
//     anew waits for open transactions, and another that took the slot meanwhile
//     would void that.
//   - What has ended is one checkpoint in both modes, of less than 200 bytes: a
//     position, a place inside the transaction behind it, and the number and the
//     cursor of the last release. In idempotent mode it is in relay_state, in
//     exactly-once mode in Kafka's transaction, which relay_state follows. A
//     session that starts from it forgets what was written down beyond it, and
//     what the cursor had passed.
//   - The ledger gives tags in the order in which things are dealt with, of the
//     stream and of a release alike, so that a checkpoint is one moment of the pump.
//   - A lane that is held once more gets another id: a cursor that has passed a
//     lane can never take for ended what waits there later.
//   - A control acts again until its transaction has ended, because the letters it
//     released were opened when the session began; those that are out already are
//     counted by their index and left out.
//   - Letters are written together, but always before a place behind them is
//     committed. Their aggregates are parked in memory at once.
//   - The tick in relay_state is durable before the checkpoint that carries it: a
//     database that was put back shows a lower one.
//
// # Stability
//
// For embedders and operators' programs: names may change in a minor version, with a line
// in the changelog (docs/adr/0027-public-packages.md).
package relay
