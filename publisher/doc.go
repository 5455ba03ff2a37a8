// Package publisher turns outbox rows into Kafka records and reports, event by
// event, which of them every in-sync replica has acknowledged.
//
// # Guarantee
//
// For every partition, what left this process is a prefix of what was handed
// to [Publisher.Publish] for it, in that order, each batch under one producer
// sequence. An acknowledgement is reported only after the broker answered with
// acks=all. An event that was never reported may or may not be in the topic;
// publishing it again through a new Publisher, from the first unreported event
// on, keeps the first occurrences of every key in order.
//
// In exactly-once mode, of [Transactional]: what was handed over between two
// commits, and the position of the second, become visible to readers with
// isolation.level=read_committed together, or never. Whoever begins at the
// position that a new Transactional finds publishes each event once.
//
// # States
//
//	running ──first ProducerError──> failed ──Close──> closed
//	   └───────────────Close───────────────────────────┘
//
// A failed publisher stays failed. There is no in-place recovery on purpose: what a
// broker refuses for good is a matter of the topic, the record or the producer, and the
// caller makes a new Publisher, which looks at all three anew, and rewinds. Until then
// nothing overtakes: the partition sends nothing more, and the connections are cut.
//
// A Transactional is open or not beside that. Every error of Commit, the end of
// its ctx included, makes it failed, because the outcome is unknown then: the
// next one's producer id settles it, and its checkpoint tells it.
//
//	idle ──Publish──> open ──Commit──> idle (with a new producer, when anything
//	  └────────Commit (position alone)──┘    of the commit had to be sent again)
//	open ──longer than its timeout, any error──> failed
//	open ──Close──> aborted
//
// # Exactly-once, and why so
//
//   - The position lies in the transaction, as a group's offset, and is read
//     after InitProducerID with RequireStable. Reading topics until they seem
//     to end instead repeats events. It is read from a coordinator that has just
//     had a write acknowledged: one that was deposed while it stood still shows
//     an old position when it wakes, and cannot write.
//   - A request that was sent twice may arrive once more, late, and would then
//     act on the transaction that is open by then: EndTxn ends it, an offset
//     takes the place of a newer one. So a producer that has repeated anything
//     of a commit is replaced, which raises the epoch, before it begins again.
//     Requests that add partitions are not counted: late, they add a partition
//     in which nothing was written.
//   - The replacement fences a relay that has taken over meanwhile. It reads
//     the checkpoint again, and stands down unless that is its own.
//   - A commit waits until every event was acknowledged, and a failure cuts the
//     connections: no EndTxn leaves after an error has been seen. An abort waits for
//     answers too, since what arrives behind it would be open for ever.
//
// # Who owns what
//
// [New] starts the produce loop (package internal/produce says what goes on there),
// which alone calls the acknowledged function, and the watcher, which alone owns the
// connection on which topics are looked up; [Publisher.Close] waits for both. What
// coordinators are asked for, one goroutine at a time does. Rows handed over are read
// until they have been acknowledged and are never written to.
//
// # What each failure does
//
//   - Brokers unreachable, leader moving, too few replicas: the same batch is sent
//     again, a thousand times, which is about 2.7 hours; a leader that cannot be found
//     is looked for without end. Publish blocks once MaxInFlightBytes wait.
//   - A topic that is missing or forbidden: [RouteError] from Publish, before
//     anything is handed over and without waiting for the network. Call again
//     later; the topic is looked up in the background, at most once a second.
//   - A topic whose limit is below a batch of ours: its records go one by one. A
//     record beyond the limit is a [record.RowError], once the limit was asked for
//     again, which Publish waits for, at most once a second.
//   - A topic that vanishes, or may no longer be written, with events in flight:
//     the publisher fails with a [LostRouteError].
//   - A batch that a broker refuses for its size or one of its records: the
//     publisher fails with a [NarrowError]; the next one, told so, sends that
//     topic's records one by one, and fails with a [RefusedError] at the one
//     that is to blame.
//   - A row that can never become a record: [record.RowError] from Publish. Nothing
//     was handed over, and its neighbours are not touched.
//   - Credentials or certificates that are no longer accepted, and anything else
//     that the producer gives up on: [Publisher.Failed].
//   - In a transaction nothing is retried for longer than its timeout, since
//     the coordinator has aborted it by then.
//   - A rival with the same transactional id, or an abort by the coordinator:
//     the Transactional fails with [ErrFenced].
//   - A checkpoint topic that is missing or of the wrong kind:
//     [CheckpointError] at the start, with the command that mends it.
//
// # Files
//
// config.go says what can be set; route.go, record.go (whose headers package record
// writes), partition.go, judge.go and classify.go are pure; sarama.go configures sarama
// (made and secured by internal/kafkaconf) and the produce loop; wire.go owns the
// connections, brokers.go and topics.go the look-ups, creator.go makes topics, memory.go
// is what outlives a publisher, place.go and topic.go what an event waits for, producer.go
// and inflight.go its way; transaction.go, transaction_end.go and transaction_errors.go are
// exactly-once mode, transaction_requests.go, coordinator.go and offsets.go what it asks
// brokers for, and checkpoint.go its topic. They are more than 25, and stay together: every
// wall that was tried through the look-ups, the topics and the transactions is crossed by 20
// to 30 names. That around the produce loop is crossed by a dozen.
//
// # Stability
//
// For embedders and operators' programs: names may change in a minor version, with a line
// in the changelog (docs/adr/0027-public-packages.md).
package publisher
