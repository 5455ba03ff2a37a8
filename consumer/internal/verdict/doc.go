// Package verdict decides how an event may be claimed: what is above the floor of its
// class is claimed under its own id, and of what is below the group's mark tells a late
// event, which the group sees for the first time, from one that it may have applied.
//
// The invariant: an event is claimed under its own id if and only if its time lies
// between the floor and now; raising a floor never lets an event be claimed that was
// refused before. The package is pure.
package verdict
