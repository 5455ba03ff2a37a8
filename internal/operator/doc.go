// Package operator is what an operator can ask of Onceward's two databases and order
// there, as a library: no flag, no terminal, nothing printed. cmd/outboxctl is its
// first user.
//
// A question returns a report, which is a value and the JSON document that a script
// reads; Wrong says of it whether what was found is not as it should be. What changes
// something is an [Order]: it is planned, which finds what is meant and changes nothing,
// a person may be asked, and then it is carried out, which is refused where what was
// found has changed meanwhile.
//
// What an operator reads, an error or the why of a report, says what happened, to
// what, and what to do next; where that is a command it is one of outboxctl.
//
// # Rooms
//
// Each noun has a room below this one. They know those that stand above them here, and no
// circle:
//
//	states      every state, cause and action once
//	kafka       copies of an event, and compacted topics
//	relays      relays with slots and processes; pause, resume, skip
//	audit       what must hold in a consumer's database
//	windows     the deduplication windows of consumer groups
//	partitions  the daily partitions of both sides
//	letters     the dead letters of both sides
//	fences      effects outside the consumer's database
//	claims      what groups did with an event; how one forgets it
//	events      events in a state, and the life of one
//	gaps        what a relay cannot prove that it published
//	replay      orders to publish events again
//	binding     to which system and cluster a relay is bound; adopt, retire
//	status      how a producer's database is
//	settings    a relay's configuration, without its secrets
//	check       every precondition of a relay, on both ends, and how two programs print them
//
// This package has what all rooms share: [Database], the way to PostgreSQL; [Name] and
// [Selection], how events and letters are meant; [UnclearError], an order that says too
// little; and the errors that say who may do a thing and what is missing.
//
// A [Database] may be used by several goroutines. Who opens it closes it. Nothing here
// starts a goroutine.
package operator
