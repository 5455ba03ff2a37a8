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
// one worker, which takes the messages of each aggregate in order, alone or in
// batches (consumer.Router.Batch), up to Config.Concurrency at a time.
//
// When a session ends, workers take no further message; those in hand may
// finish within Config.DrainTimeout and are rolled back otherwise. Then the
// offsets are committed.
//
// # Offsets and the database
//
// Before offsets are committed to Kafka, the marks up to which everything is
// finished are saved in onceward.progress, and the offset's metadata carries the
// mark. When the database turns out to be behind it, after a failover to a
// standby that lacked commits or a restored backup, the partition begins again
// after the database's own mark: effects that were lost are made again, the
// others are duplicates. The database's history (system identifier, timeline) is
// compared at every save; while the database is away no offset moves.
//
// # Failures
//
//   - A delivery that fails, or whose claim another process holds, is tried
//     again with growing, jittered pauses. Its aggregate waits, others go on,
//     until Config.MaxHeld messages of the partition wait; then that waits.
//     consumer.Retry says when the event becomes a dead letter.
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
