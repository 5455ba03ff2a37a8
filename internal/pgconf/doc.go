// Package pgconf holds what every database session of ours is set to, so that
// nobody else's function, operator or row filter gets into it.
//
// The first defence is in the statements: they name functions with their schema,
// and what runs where the search_path is another's names operators and types too
// (see internal/houserules). This is the second. [Startup] is for connections that lead to
// PostgreSQL itself; [Local] is for transactions that may go through a pooler,
// which refuses parameters that it does not know, and would leave a SET of the
// session to whoever gets the server connection next.
//
// [VerifiesServer] says of a connection string, before any session, whether nobody
// else can answer it.
//
// It has no state and starts nothing.
package pgconf
