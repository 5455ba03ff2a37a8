// Package claims is what everybody knows who reads onceward.processed_events, the
// table of claims: its name and its days, the ids under which is claimed by arrival,
// and what its horizon says. The consumer claims in it, package retention makes and
// drops its partitions, package audit judges it, and outboxctl looks into it; here
// stands what they must not see in two ways.
//
// A claim is a row of an event and a group, in the partition of the day of its id.
// The id of one that is claimed by event time is the event's own; by arrival there
// are two, of version 8, at the ends of buckets ([Buckets]), so that they lie ahead.
// Claims from before the horizon may be gone.
//
// Nearly all is pure, and safe for concurrent use; what asks the database returns its
// errors.
//
//	claims.go    the table, the order of its ids, for how long floors are trusted
//	arrival.go   buckets, and the ids of arrivals in them
//	days.go      which days have a partition, and the horizon
package claims
