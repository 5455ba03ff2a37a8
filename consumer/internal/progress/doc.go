// Package progress reads and writes onceward.progress: the marks of a group, which say how
// far it has finished each partition of each topic, and go with the database's history.
//
// The invariants: a mark is never lowered, and none is written on another history than
// the work was done on, because effects that it stands for may be missing there. The
// package keeps nothing; the transaction is the caller's, and errors are those of pgx or
// [ErrHistory].
package progress
