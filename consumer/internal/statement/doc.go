// Package statement runs the statements of a delivery in the transaction that it has:
// one of pgx, in each of its modes and behind a pooler, or one of database/sql.
//
// Those that find claims by their ids are planned each time. The package keeps nothing; a
// transaction is used by one goroutine at a time. Errors are those of pgx, also over
// database/sql.
//
//	statement.go   the statements
//	planned.go     statements that are planned each time
//	usable.go      which pools it can work with
//	sql.go         over database/sql
package statement
