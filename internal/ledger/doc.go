// Package ledger knows how far everything has ended: what a session may confirm, and
// what the next one needs to know to do each item of the stream once.
//
// [Progress] says which position may be checkpointed: the invariant of the relay.
// [Ledger] adds how each item ended, and how far the pump had come when everything
// before had: a [Place] in the stream and a [Cursor] in a release, together a
// [Reach]. A [Checkpoint] is all of it, as Kafka and relay_state keep it, and
// [Idle] says when one is due though nothing was published.
//
// It is pure: no clock, no connection, no goroutine. The caller serialises the
// calls. It stands beside the relay because the simulation of package cdc confirms
// by it too.
package ledger
