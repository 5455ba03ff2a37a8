// Package audit checks in a consumer's database that is in use what must hold there,
// and says of what does not hold what happened and what to do. `outboxctl audit` prints
// it; a program may call [Check] beside its handlers, e.g. once an hour.
//
// # Guarantee
//
// It only reads, and ends in bounded time whatever the size of the tables: what is cut
// short is named in the report, and so is what could not be judged without it, so that
// an empty [Report] means that all was looked at and is right.
//
// # How
//
// Each check has a transaction of its own, read only and pinned, with a timeout for
// each statement. The first, of the partitions, reads what nearly all others judge by.
// It keeps no state and starts nothing; the pool or connection is the caller's.
//
//	audit.go    what callers see, and one run
//	table.go    partitions, keys, floors, fences: by the catalog and small tables
//	claims.go   claims and letters: by the end of each partition, and by indexes
//
// # Stability
//
// For embedders and operators' programs: names may change in a minor version, with a line
// in the changelog (docs/adr/0027-public-packages.md).
package audit
