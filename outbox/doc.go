// Package outbox is the producer's side of the transactional outbox and the
// vocabulary of every other package.
//
// # Guarantee
//
// An event that [Enqueue] accepted exists if and only if the caller's
// transaction commits. The relay then publishes it to Kafka; see the package
// relay for what happens from there.
//
// # What lives here
//
//   - [Key]: the idempotency key, `<namespace>:<uuid>`, whose first 48 bits are
//     the event time. Two layouts, UUIDv7 and UUIDv8, nothing else.
//   - [Event]: what a service writes, and [Row]: the same as the relay reads
//     it back, with the columns that PostgreSQL filled in.
//   - [Enqueue]: one INSERT in the caller's transaction.
//   - the names of the record headers of the wire contract.
//
// # Ownership
//
// The package opens no connection and starts no goroutine. It imports pgx and
// uuid, and nothing of Kafka. Everything exported is safe for concurrent use,
// except that a transaction belongs to one goroutine, as always.
package outbox
