// Package saramagroup feeds a consumer.Router from Kafka, as one member of a
// sarama consumer group.
//
// # Guarantee
//
// The committed offset of a partition never passes a message that is not
// finished: its effect committed, known to be committed before, kept as a dead
// letter, or ignored by name. Together with the claims of the package consumer
// each event is applied once, through crashes, rebalances and restarts.
//
// # States
//
// [Run] joins the group, consumes until the group rebalances, joins again, and
// so on until its context ends. Within a session each assigned partition has
// one worker, which takes the partition's messages in order.
//
// When a session ends, workers take no further message; the one they hold may
// finish within Config.DrainTimeout and is rolled back otherwise. Then the
// offsets are committed.
//
// # Failures
//
//   - A delivery that fails, or whose claim another process holds, is tried
//     again in place with growing, jittered pauses. Its partition waits.
//   - PostgreSQL is away: the same. Messages stay in Kafka, the membership too.
//   - Kafka is away, at the start or later: Run joins again until it is back.
//   - A malformed record becomes a dead letter and the partition goes on.
//   - An event type without handler, an offset that Kafka no longer has, a
//     refused login or authorization: Run stops and returns the error.
//
// # Ownership
//
// Run blocks, and has ended all its goroutines and its connections to Kafka
// when it returns. The router and its pool stay the caller's.
//
// # What sarama keeps globally
//
// A compressed batch may inflate without limit unless the program sets
// sarama.MaxDecompressedBatchSize. It is a variable of the whole process, so
// this package leaves it to the program's main function. The same holds for
// sarama.Logger.
package saramagroup
