// Package record is the wire contract: what stands in a Kafka record of an event, and
// what a consumer reads out of it again. docs/contract.md says it in words.
//
// # Guarantee
//
// What [AppendHeaders] makes of a row, [Decode] reads back as the same event, in each of
// the header styles onceward, cloudevents and debezium; what a letter keeps of a record's
// headers ([StoreHeaders]) comes back as it was ([LoadHeaders]). One rule says
// for both sides which replays there are. Events of other producers have a key that every
// copy of them has: [CloudEvents], [DebeziumOutbox], [TimelessKey].
//
// # What each failure does
//
// A row that no consumer could use is a [RowError] before anything is sent. A record
// that breaks the contract is a [MalformedError] that names the header, whatever else is
// in it: nothing here panics, and no header outside the contract makes a difference.
//
// # Ownership
//
// Everything here is pure, and safe for concurrent use. Slices are shared: headers hold
// the row's bytes, and an event its record's. The package knows no Kafka client; it is
// imported by publisher and consumer, which do not know one another.
//
// # Files
//
// header.go has the names, event.go the types; encode.go and user.go write, decode.go
// reads, replay.go is both sides' rule. stored.go is the form in a letter, fingerprint.go
// the identity of content. cloudevents.go, debezium.go and timeless.go are about other
// producers.
package record
