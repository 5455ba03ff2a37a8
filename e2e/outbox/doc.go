// Package outbox holds the end-to-end tests of package outbox and of outboxtest: what
// they write, and what the SQL function does, on a real PostgreSQL with our tables.
//
// They stand here and not beside the code because outbox is a module of its own, which
// knows neither migrations nor the servers of tests. Without the build tag e2e the
// package is empty. Every test has a database of its own (testdb).
package outbox
