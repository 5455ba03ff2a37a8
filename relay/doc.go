// Package relay publishes the outbox of one PostgreSQL database, through one
// replication slot, to one Kafka cluster. It joins package cdc (the log) and
// package publisher (the topic), which know nothing of one another.
//
// # Guarantee
//
// Every event whose transaction committed after the slot was made is published
// at least once, events of one aggregate in commit order. A position is
// checkpointed in onceward.relay_state only after everything before it was
// acknowledged by Kafka, and the slot is confirmed only up to a checkpoint that
// is durable. A copy that a crash makes has the same key, bytes, partition and
// headers, but for the header `position`.
//
// # States
//
//	connecting ──> streaming ──> stopped
//	   ^  │            │
//	   │  ├─> standby ─┤   the slot has another holder; tried again every second
//	   │  │            │
//	   └──┴── backoff <┘   a connection broke; tried again, with jitter
//
// and from any state to halted: an error that trying again cannot mend. Run
// returns it, and the slot's position does not move. A missing or forbidden
// topic does not end the session: the state is holding, and the event waits.
//
// # Who owns what
//
// [Relay.Run] runs one session after the other. A session has one replication
// connection (of the cdc.Reader's goroutine), one ordinary connection (of the
// checkpoint's goroutine) and one producer. Whatever breaks, all three are
// thrown away and the next session starts from the checkpoint: re-sending one
// failed message would reorder its key. What this process knows to have ended
// is not published again.
package relay
