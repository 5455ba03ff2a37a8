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
// # Stream time
//
// The floor of a dedup window follows the event times that the group has
// finished in each of its partitions. So every assigned partition has a mark from
// the start of its first session, without a time until something is finished in
// it. One that nothing has reached for ten seconds is asked about in Kafka, and
// then every minute: when nothing is left in it for a reader of committed
// messages, it counts what the group has finished anywhere
// (consumer.Mark.AtEnd), and its offset moves over the markers and aborted
// messages at its end. An open transaction holds it back.
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
// # Housekeeping
//
// Every Config.HousekeepingInterval, with or without a session, Run does what no
// message asks for: dead letters that `outboxctl dead redrive` has asked for are
// handled again, effects whose process died are finished, dead letters are copied
// to Config.DeadLetterTopic. Nothing waits for it, and all members of a group may
// do it at once.
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
