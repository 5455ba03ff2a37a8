// Package operator is what an operator can ask of Onceward's two databases and order
// there, as a library: no flag, no terminal, nothing printed. cmd/outboxctl is its
// first user. Each noun has a room below this one.
//
// A room's question returns a report, which is a value and the JSON document that a
// script reads. An order is asked for in two steps, so that a person can be shown what
// it means before it is carried out: what is found first, and then the deed, which is
// refused where what was found has changed meanwhile.
//
// What an operator reads, an error or the why of a report, says what happened, to
// what, and what to do next; where that is a command it is one of outboxctl.
//
// This package has what all rooms share: [Database], the way to PostgreSQL; [Name] and
// [Selection], how events and letters are meant; [UnclearError], an order that says too
// little; and the errors that say who may do a thing and what is missing.
//
// A [Database] may be used by several goroutines. Who opens it closes it. Nothing here
// starts a goroutine.
package operator
