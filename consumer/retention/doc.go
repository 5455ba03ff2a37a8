// Package retention looks after the partitions of onceward.processed_events, the claims
// of consumers: it makes those that are missing ahead, raises the floors of groups, and
// drops what is below all of them. `outboxctl partitions maintain --side consumer` runs
// it every few minutes; a program may call [Maintain] instead.
//
// # Guarantee
//
// No partition goes while some group may still claim an event in it: its floors say so,
// which follow what the group has finished and never the clock alone. What was
// registered counts, and a group that registered nothing keeps everything.
//
// # States
//
// A day's partition (leaf) goes through these states, and a step that is interrupted
// anywhere is taken up by the next run:
//
//	open ──> detaching ──> dropped
//
// Each step commits before the next begins. The floors are raised first, so that
// nobody claims an event any more whose claims may go. The horizon is raised
// next, under the lock that registration takes, so that no new group gets a floor
// below. Then the leaf is detached, which holds no other insert back, and dropped.
//
// # Operators
//
// [Adopt] opens days again for a new group on an old topic. [Advise] says from the
// duplicates that were seen whether windows are long enough.
//
// # Failure, and ownership
//
// What waits for a lock or for a group is in the report and no error, and one leaf
// keeps no other from its turn. One session works at a time. The connection is the
// caller's, and nobody else's meanwhile; the package starts nothing and keeps nothing.
//
//	retention.go   what callers see, and which days are made
//	floor.go       how far each floor may be raised
//	leaf.go        one leaf, as far as it may go
//	rows.go        rows that expire one by one, and how the table stands
//	adopt.go       days of the past for a new group
//	advise.go      how long a window should be
//
// # Stability
//
// For embedders and operators' programs: names may change in a minor version, with a line
// in the changelog (docs/adr/0027-public-packages.md).
package retention
