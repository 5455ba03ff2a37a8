package saramagroup

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/IBM/sarama"
)

// lookVersion of the request Fetch is known by every Kafka that is supported; 4
// was the first with an isolation level. firstBatch reads its answers.
const lookVersion = 11

// findEnd asks the partition's leader whether anything is left, from an offset on,
// for a reader of committed messages. When nothing is, it returns the end. ok is
// false while messages are left, while an open transaction may still bring some,
// and when nobody can tell.
//
// It asks by a fetch of its own, because nothing else says it. That the offset
// is the high-water mark does not hold where a transaction's marker, or an
// aborted transaction, is the last thing in the log: they take offsets of which
// a group never hears. That the high-water mark known to sarama is the newest
// offset says nothing about what was read: sarama takes it at the start and from
// answers that lie in its buffers, and Kafka's newest offset does not show an
// open transaction.
//
// A leader that was deposed and does not know it may say too early that nothing
// is left. Then what comes later with an old time is late, and not lost.
func findEnd(client sarama.Client, at place, from int64) (end int64, ok bool, err error) {
	for {
		block, err := fetch(client, at, from, client.Config().Consumer.Fetch.Default)
		if err != nil {
			_ = client.RefreshMetadata(at.topic) // the leader may have moved
			return 0, false, fmt.Errorf("fetch %s/%d from %d: %w", at.topic, at.partition, from, err)
		}
		next, shown := unread(block, from)
		switch {
		case shown:
			return 0, false, nil
		case next >= block.HighWaterMarkOffset:
			return next, true, nil
		case next == from: // an open transaction is next, or a batch that compaction has emptied, which sarama hides
			return 0, false, nil
		}
		from = next
	}
}

// fetch reads what the leader has from an offset on, without waiting: batches of
// so many bytes at most, but for a single larger one.
func fetch(client sarama.Client, at place, from int64, most int32) (*sarama.FetchResponseBlock, error) {
	leader, err := client.Leader(at.topic, at.partition)
	if err != nil {
		return nil, err
	}
	request := &sarama.FetchRequest{Version: lookVersion, MaxBytes: most, Isolation: sarama.ReadCommitted,
		SessionEpoch: -1}
	request.AddBlock(at.topic, at.partition, from, most, -1)
	answer, err := leader.Fetch(request)
	if err != nil {
		return nil, err
	}
	block := answer.GetBlock(at.topic, at.partition)
	if block == nil {
		return nil, sarama.ErrIncompleteResponse
	}
	if block.Err != sarama.ErrNoError {
		return nil, block.Err
	}
	return block, nil
}

// unread goes over an answer from an offset on, as a reader of committed
// messages does. It returns the offset after it, or shown when the reader gets
// to see any of it. It is pure.
func unread(block *sarama.FetchResponseBlock, from int64) (next int64, shown bool) {
	if slices.ContainsFunc(block.RecordsSet, func(r *sarama.Records) bool { return r.RecordBatch == nil }) {
		return from, true // the format from before transactions
	}
	next = visible(block, from, func(batch *sarama.RecordBatch) bool {
		shown = shown || reaches(batch, from)
		return !shown
	})
	return next, shown
}

// visible calls show for each batch of an answer that a reader of committed
// messages gets to see, until that is false, and returns the offset behind the
// last one that was passed.
func visible(block *sarama.FetchResponseBlock, from int64, show func(*sarama.RecordBatch) bool) (next int64) {
	aborted := slices.SortedFunc(slices.Values(block.AbortedTransactions), func(a, b *sarama.AbortedTransaction) int {
		return cmp.Compare(a.FirstOffset, b.FirstOffset)
	})
	aborting := make(map[int64]bool) // producers inside an aborted transaction
	for _, records := range block.RecordsSet {
		batch := records.RecordBatch
		if batch == nil || batch.PartialTrailingRecord {
			break
		}
		for len(aborted) > 0 && aborted[0].FirstOffset <= batch.LastOffset() {
			aborting[aborted[0].ProducerID] = true
			aborted = aborted[1:]
		}
		switch {
		case batch.Control:
			if isAbort(batch) {
				delete(aborting, batch.ProducerID)
			}
		case batch.IsTransactional && aborting[batch.ProducerID]:
		case !show(batch):
			return from
		}
		from = max(from, batch.LastOffset()+1)
	}
	return from
}

// reaches reports whether a batch has a message at the offset or after it.
func reaches(batch *sarama.RecordBatch, from int64) bool {
	return slices.ContainsFunc(batch.Records,
		func(r *sarama.Record) bool { return batch.FirstOffset+r.OffsetDelta >= from })
}

// isAbort reads a transaction's marker: the key is a version and a type, of 16
// bits each; type 0 is an abort (Kafka protocol, ControlRecordType).
func isAbort(batch *sarama.RecordBatch) bool {
	return len(batch.Records) == 1 && len(batch.Records[0].Key) >= 4 &&
		binary.BigEndian.Uint16(batch.Records[0].Key[2:]) == 0
}
