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
// [Transform] is a member without a database, which writes what it makes of each record
// back to Kafka: see there. What follows is about [Run], but for the compressed batches.
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
// topic's id and the mark. When the database turns out to be behind it, after a failover to a
// standby that lacked commits or a restored backup, the partition begins again
// after the database's own mark: effects that were lost are made again, the
// others are duplicates. The database's history (system identifier, timeline, the
// start of its server) is compared at every save; while the database is away no
// offset moves.
//
// A mark holds for the topic with its id only. One that was made anew ends the
// session, and is read from its beginning; so it is where Kafka, which takes an offset by
// the name, still got one of before. Metadata of another id, which comes along
// when a group is moved to another cluster, says nothing of the mark, and its offset
// is followed. The metadata shows by which cluster's id it was written. Where Kafka tells no
// ids, topics of one name are one.
//
// # Crashes
//
// A session writes into the marks that it has them, until its end. Where a session
// finds that another one has not ended, a message may have killed its process: up
// to a little behind what was read, messages go to Handler.HandleCautiously, one at
// a time of all partitions, with no redrive beside it, and nothing behind them before
// the database knows that they were read. Of an offset that was set back they begin
// behind the mark, before which nothing was in hand.
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
//     until Config.MaxHeld messages of the partition wait; then that waits. What
//     is finished does not count: it leaves nothing in memory but the lower
//     bound that the first unfinished message is. The offset waits there, and what
//     is finished behind it comes again, as duplicates, after a crash or a
//     rebalance. consumer.Retry says when the event becomes a dead letter.
//   - PostgreSQL is away: the same. Messages stay in Kafka, the membership too.
//   - Kafka is away, at the start or later: Run joins again until it is back.
//   - A malformed record becomes a dead letter and the partition goes on.
//   - A compressed batch unpacks to more than the limit: see below. Its range of
//     offsets becomes one dead letter, and the partition goes on behind it.
//   - A batch is damaged (its checksum or format): the partitions of its broker
//     stand still, and the log names one.
//   - A login is refused: with SASL.PasswordFunc it is tried again with the
//     password of that moment; otherwise Run stops and returns the error.
//   - An event type without handler, an offset that Kafka no longer has, a
//     refused authorization: Run stops and returns the error.
//
// # Housekeeping
//
// Every Config.HousekeepingInterval, with or without a session, Run does what no
// message asks for: dead letters that `outboxctl dead redrive` has asked for are
// handled again, effects whose process died are finished, dead letters are copied
// to Config.DeadLetterTopic. Nothing waits for these, none of them for another, and
// all members of a group may do them at once.
//
// # Ownership
//
// Run blocks, and has ended all its goroutines and its connections to Kafka
// when it returns. The router and its pool stay the caller's.
//
// # Compressed batches
//
// A few bytes may unpack to gigabytes. sarama's limit of one batch,
// MaxDecompressedBatchSize, is a variable of the whole process and 0, no limit, at
// the start; Run sets it to [DefaultMaxUnpacked] when it is 0, and logs that. A
// program that wants another one sets it before Run; -1 is no limit.
//
// sarama refuses an answer with such a batch as a whole, so that nothing of that
// broker is read. Then the session ends, and the next one reads each partition
// alone, batch by batch. The range of the batch, which its header says, is
// kept by Handler.KeepUnreadable as a dead letter with the reason
// "unreadable", but for what the group's mark proves finished, and the partition
// goes on behind it; what lies before it is delivered, also what lies between two such batches. Of a
// transaction that was aborted nothing is kept. The letter can be discarded. To have the messages after all,
// within the window of their class: stop the group, set its offset of the partition back to the letter's,
// raise the limit, start; then discard the letter. What was applied is a duplicate.
//
// The limit of one batch is none of an answer. So little is asked for at once, and
// nothing is buffered: the bytes of one partition in an answer, 2 KiB with the
// default limit, unpack to 64 MiB at most, or are a single batch. The bound
// of a member's memory is that, times the partitions that are assigned to it and
// answer at once, and about as much again for the garbage collector; besides
// MaxHeldBytes. A lower limit allows larger answers: 32 KiB with 1 MiB.
//
// sarama.Logger is global too, and left to the program.
package saramagroup
