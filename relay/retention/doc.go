// Package retention makes the daily partitions of the outbox, and drops those of
// which everything is published. The relay runs it every few minutes, or
// `outboxctl partitions maintain` does.
//
// # Guarantee
//
// No row is dropped that a relay still owes, nor one that was given to no
// relay, unless an operator has said so. Producers of today find a partition.
//
// # States
//
// A day's partition (leaf) goes through these states, and a step that is
// interrupted anywhere is taken up by the next run:
//
//	open ──> closed ──> detaching ──> dropped
//
// Rows that commit while a concurrent detach is pending are not decoded, so that
// a leaf is closed first: an ENABLE ALWAYS trigger refuses every insert with
// 23514, which package outbox reports as ErrOutOfWindow. Making the trigger waits
// for the leaf's open writers, so that nothing can be added after its commit, and
// what is in the leaf then is all that there will ever be. A closed leaf is
// detached only when every relay has published, by a snapshot taken after the
// closing, every row of it. Before the drop the same is asked once more, with the
// leaf locked.
//
// # Failure
//
// What waits for a lock or for a relay is in the report, and no error; one leaf
// keeps no other from its turn. One session works at a time.
//
// retention.go is what callers see, leaf.go takes one leaf as far as it may go,
// and gate.go says whether it may.
//
// # Stability
//
// For embedders and operators' programs: names may change in a minor version, with a line
// in the changelog (docs/adr/0027-public-packages.md).
package retention
