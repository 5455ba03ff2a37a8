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
// # States
//
//	running ──first ProducerError──> failed ──Close──> closed
//	   └───────────────Close───────────────────────────┘
//
// A failed publisher stays failed. There is no in-place recovery on purpose:
// sarama goes on with the partition's next batch when one has failed, and
// sending the failed one again would put it behind its successors. The gate of
// wire.go therefore refuses every write from the moment the first error is
// seen, and the caller makes a new Publisher and rewinds.
//
// # Who owns what
//
// [New] starts two goroutines and [Publisher.Close] waits for both: the drain,
// which alone reads sarama's Successes and Errors and alone calls the
// acknowledged function, and the watcher, which alone owns the connection on
// which topics are looked up. Rows handed over are read until they have been
// acknowledged and are never written to.
//
// # What each failure does
//
//   - Brokers unreachable, leader moving, too few replicas: sarama retries the
//     same batch for about 2.7 hours; Publish blocks once MaxInFlightBytes wait.
//   - A topic that is missing or forbidden, or a record beyond its limit:
//     [RouteError] from Publish, before anything is handed over and without
//     waiting for the network. Call again later; the topic is looked up in the
//     background, at most once a second.
//   - A topic whose limit is below a batch of ours: its records go one by one.
//   - A topic that vanishes, or may no longer be written, with events in flight:
//     the publisher fails with a [LostRouteError].
//   - A batch that a broker refuses for its size or one of its records: the
//     publisher fails with a [NarrowError]; the next one, told so, sends that
//     topic's records one by one, and fails with a [RefusedError] at the one
//     that is to blame.
//   - A row that can never become a record: [RecordError] from Publish. Nothing
//     was handed over, and its neighbours are not touched.
//   - Credentials or certificates that are no longer accepted, and anything else
//     that the producer gives up on: [Publisher.Failed].
//
// # Files
//
// config.go says what can be set; route.go, record.go, style.go, headers.go,
// partition.go, judge.go and classify.go are pure; sarama.go is the only file
// that builds a sarama.Config; wire.go owns the connections, brokers.go and
// topics.go the look-ups, place.go and topic.go what an event waits for,
// producer.go, drain.go and inflight.go its way; transaction.go and those beside
// it are exactly-once mode.
package publisher
