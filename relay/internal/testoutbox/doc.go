// Package testoutbox is an outbox for the end-to-end tests of the relay's rooms: a database
// of its own on a real server, with the tables, the roles, and one relay of it.
// Nothing but tests imports it.
package testoutbox
