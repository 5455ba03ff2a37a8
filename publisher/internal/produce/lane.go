package produce

import (
	"errors"
	"math"
	"time"

	"github.com/IBM/sarama"
)

// Producer is who writes: by id, epoch and sequence a broker drops what it has
// already. It is a value.
type Producer struct {
	ID    int64
	Epoch int16
	// Transaction is the one that records belong to, counted from 1; 0 without
	// transactions.
	Transaction uint64
}

// laneState says in which list a lane is.
type laneState int8

const (
	laneIdle    laneState = iota // in none: there is nothing to send
	laneJoining                  // to be added to the transaction
	laneSeeking                  // its leader is to be looked up
	laneReady                    // with the courier to its leader
	laneFlying                   // in none: its batch is in a request
	laneFailed                   // in none, for ever
)

// lane is one partition: what waits for it, in the order of Publish, and the one
// batch of it that is on its way. The invariant on which order and idempotence
// rest: a batch, once it is numbered, is sent again byte by byte, under the same
// producer and sequence, until a broker has said what became of it, and nothing
// behind it is numbered before. It is pure.
type lane struct {
	topic     *Topic
	partition int32

	first, last *Record // in no batch yet
	batch       batch

	producer Producer // whose sequence, and in whose transaction it is
	sequence int32    // of the next batch's first record

	state  laneState
	leader *courier       // nil: not known
	tries  int            // of the batch that have failed
	answer *sarama.KError // to the last of them that had one
	due    time.Time      // the batch is not sent again before
	sought int            // look-ups of the leader that found none
	seek   time.Time      // it is not looked up again before
}

// batch is what is sent of a lane.
type batch struct {
	encoded sarama.RecordBatch // sarama keeps the bytes in it once they are compressed
	first   *Record            // of its records, in a chain of their own
	count   int                // 0: there is no batch
	bytes   int                // estimated, before compression
}

// add appends a record.
func (l *lane) add(r *Record) {
	r.next = nil
	if l.first == nil {
		l.first = r
	} else {
		l.last.next = r
	}
	l.last = r
}

// waits reports whether there is something to send.
func (l *lane) waits() bool { return l.batch.count > 0 || l.first != nil }

// head returns the record that is to end first.
func (l *lane) head() *Record {
	if l.batch.count > 0 {
		return l.batch.first
	}
	return l.first
}

// join makes the lane one of this producer's. A new id or epoch counts anew.
func (l *lane) join(p Producer) {
	if l.producer.ID != p.ID || l.producer.Epoch != p.Epoch {
		l.sequence = 0
	}
	l.producer = p
}

// tiny is how many bytes are not worth being compressed.
const tiny = 1 << 10

// build makes a batch of what waits, of at least one record and at most limit
// bytes; a record that must be alone is. It must be called on a lane that has no
// batch and is the producer's.
func (l *lane) build(limit int, codec sarama.CompressionCodec, transactional bool, now time.Time) {
	b := &l.batch
	records := b.encoded.Records[:0]
	b.first, b.bytes = l.first, BatchOverhead
	var end *Record
	for r := l.first; r != nil; r = r.next {
		if end != nil && (b.bytes+r.Bytes > limit || r.Alone || end.Alone) {
			break
		}
		r.Kafka.OffsetDelta = int64(len(records))
		records = append(records, &r.Kafka)
		b.bytes += r.Bytes
		end = r
	}
	if l.first = end.next; l.first == nil {
		l.last = nil
	}
	end.next = nil
	b.count = len(records)
	if b.bytes < tiny {
		codec = sarama.CompressionNone
	}
	b.encoded = sarama.RecordBatch{
		Version: 2, Codec: codec, CompressionLevel: sarama.CompressionLevelDefault,
		FirstTimestamp: now, MaxTimestamp: now, LastOffsetDelta: int32(b.count - 1),
		ProducerID: l.producer.ID, ProducerEpoch: l.producer.Epoch, FirstSequence: l.sequence,
		IsTransactional: transactional, Records: records,
	}
	l.sequence = after(l.sequence, b.count)
}

// after returns the sequence number n behind another. They wrap around to 0.
func after(sequence int32, n int) int32 { return int32((int64(sequence) + int64(n)) & math.MaxInt32) }

// refused notes what a broker has answered about the batch, which is sent again.
func (l *lane) refused(cause error) {
	var code sarama.KError
	if errors.As(cause, &code) {
		l.answer = &code
		l.topic.Refusal.Store(l.answer)
	}
}

// end takes the batch off, and returns its records.
func (l *lane) end() (first *Record) {
	if l.answer != nil {
		l.topic.Refusal.CompareAndSwap(l.answer, nil) // another lane's may be younger
		l.answer = nil
	}
	first = l.batch.first
	clear(l.batch.encoded.Records) // they go on to be others
	l.batch = batch{encoded: sarama.RecordBatch{Records: l.batch.encoded.Records[:0]}}
	l.tries, l.sought = 0, 0
	l.due, l.seek = time.Time{}, time.Time{}
	return first
}
