// Package pooler finds out whether a connection leads through a pooler, such as
// PgBouncer in transaction mode, and refuses it for what does not go well with one:
// a lock that a session holds ([Direct]), and statements in more round trips than
// one ([Check]).
//
// It asks PostgreSQL for the session and compares it with what the driver believes.
// It keeps no state; both functions may be called concurrently, on connections that
// are the caller's alone meanwhile. A refusal is [Err]; any other error says that
// nobody could be asked.
package pooler
