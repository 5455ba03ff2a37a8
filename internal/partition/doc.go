// Package partition makes the daily partitions of tables that are partitioned
// by RANGE over an event id, whose first 48 bits are the event time.
//
// # Guarantee
//
// After [Ensure] every UTC day of the range has exactly one open partition, or
// nothing was changed and the error says why. Days that are there already are
// left alone, so a call can be repeated, and concurrent calls wait for one
// another.
//
// There is never a DEFAULT partition: it would accept a replay whose day is
// gone as if it were new. [Ensure] refuses a table that has one.
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
// Everything happens in one transaction of the caller's connection. A lost
// connection, a cancelled context or an SQL error leaves the table as it was.
//
// The file day.go is pure (names, bounds, what is missing); read.go and
// ensure.go are the edge.
package partition
