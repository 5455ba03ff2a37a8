// Package transaction is what a delivery's transactions have of their own: they are bounded
// from their beginning ([Bounds]), which costs no round trip, a handler cannot end the one
// that it gets ([Guarded]), and one whose handler does not return is left to it with a
// connection that is cut ([Abandon]), and not touched any more.
//
// What a handler gets has begun: its event was claimed. Before that a transaction takes
// Exec, Query, QueryRow and Begin, and nothing else of pgx.Tx.
//
// A transaction holds a connection of the caller's pool, and gives it back at its end,
// or, abandoned, never. It is used by one goroutine at a time, but that an abandoned one
// is its handler's. Errors are those of pgx; whose failure they are is judged by the
// caller.
//
//	transaction.go   from the beginning to the end
//	first.go         the first statement, which brings the beginning with it
//	bounds.go        the statement that bounds it
//	guarded.go       as its handler sees it
package transaction
