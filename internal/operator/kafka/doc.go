// Package kafka asks Kafka on behalf of an operator: where the copies of an event are, and
// which topics are compacted. It only reads, with the client that publisher has too, and
// makes no topic.
//
// [FindCopies] reads partitions to their end as a read_committed consumer sees them, and
// blocks until then; ctx is looked at between requests.
package kafka
