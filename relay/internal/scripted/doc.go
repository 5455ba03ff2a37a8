// Package scripted is a PostgreSQL for tests, at the wire: it answers as a test has
// scripted it, and says what it was asked. Nothing but tests imports it.
package scripted
