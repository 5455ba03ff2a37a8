// Package partition makes the daily partitions of tables that are partitioned
// by RANGE over an event id, whose first 48 bits are the event time.
//
// # Guarantee
//
// After [Ensure] every UTC day of the range has exactly one open partition, or
// nothing was changed and the error says why; but for days whose name is taken by a
// table that is not attached: the others are made, and the error names these. Days that are there already are
// left alone, so a call can be repeated, and concurrent calls wait for one
// another.
//
// There is never a DEFAULT partition: it would accept a replay whose day is
// gone as if it were new. [Ensure] refuses a table that has one. For the same
// reason it makes no day below the oldest partition, unless it is told to.
//
// # What is locked
//
// A new partition is made beside its parent and then attached, which takes
// SHARE UPDATE EXCLUSIVE on the parent: writers and readers are not held back,
// other partition maintenance waits. The bounds are checked by a constraint
// that exists for the moment of attaching, so that no scan is needed.
//
// # Failure
//
// [Ensure] does everything in one transaction of the caller's connection. A lost
// connection, a cancelled context or an SQL error leaves the table as it was.
//
// # Retention
//
// What goes, and when, is decided by the packages relay and consumer. What they
// share is here: [Enter] makes a session the one maintainer, [Leaves] shows how
// far each partition is, [Exit] takes one away by [Detach] and [Drop], and asks the
// [Gate] of its side before each. A detach holds no writer back and can be cut short
// anywhere; the next run goes on with it.
//
// The file day.go is pure (names, bounds, what is missing); read.go, ensure.go,
// leaf.go, life.go and session.go are the edge.
package partition
