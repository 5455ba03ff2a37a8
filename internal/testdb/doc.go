// Package testdb gives each end-to-end test an empty database of its own on a
// PostgreSQL server that the tests of one package share.
//
// # Guarantee
//
// [New] returns a database that nobody else uses and that is dropped when the
// test ends. A server is started at the first demand for its version and
// stopped by [Main]; a package that uses New without Main leaves it running
// until the test binary ends.
// [Pooler] leads to it by a way that refuses startup parameters, as PgBouncer does.
//
// # Failures
//
// A server that does not start fails every test that asks for its version. A
// database that cannot be dropped fails its test: it has left something behind,
// for example a replication slot.
package testdb
