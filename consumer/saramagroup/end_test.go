package saramagroup

import (
	"slices"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// journal is a partition's log as a test writes it, with what readers of
// committed messages see of it.
type journal struct {
	batches []*sarama.RecordBatch
	aborted []*sarama.AbortedTransaction
	last    []int64           // the marker's offset of each aborted transaction
	begun   map[int64]int64   // first offset of each producer's open transaction
	pending map[int64][]int64 // its messages
	visible []int64
	end     int64
}

func newJournal() *journal {
	return &journal{begun: make(map[int64]int64), pending: make(map[int64][]int64)}
}

func (j *journal) append(b *sarama.RecordBatch, records int) {
	b.FirstOffset, b.LastOffsetDelta = j.end, int32(records-1)
	for i := range records {
		b.Records = append(b.Records, &sarama.Record{OffsetDelta: int64(i)})
	}
	j.batches = append(j.batches, b)
	j.end += int64(records)
}

func (j *journal) plain(records int) {
	for i := range records {
		j.visible = append(j.visible, j.end+int64(i))
	}
	j.append(&sarama.RecordBatch{ProducerID: -1}, records)
}

func (j *journal) transactional(producer int64, records int) {
	if _, open := j.begun[producer]; !open {
		j.begun[producer] = j.end
	}
	for i := range records {
		j.pending[producer] = append(j.pending[producer], j.end+int64(i))
	}
	j.append(&sarama.RecordBatch{ProducerID: producer, IsTransactional: true}, records)
}

func (j *journal) finish(producer int64, commit bool) {
	first, open := j.begun[producer]
	if !open {
		return
	}
	marker := []byte{0, 0, 0, 0}
	if commit {
		marker[3] = 1
		j.visible = append(j.visible, j.pending[producer]...)
	} else {
		j.aborted = append(j.aborted, &sarama.AbortedTransaction{ProducerID: producer, FirstOffset: first})
		j.last = append(j.last, j.end)
	}
	delete(j.begun, producer)
	delete(j.pending, producer)
	j.append(&sarama.RecordBatch{ProducerID: producer, IsTransactional: true, Control: true}, 1)
	j.batches[len(j.batches)-1].Records[0].Key = marker
}

// answer is what a leader gives a reader of committed messages: batches from the
// one with the offset on, as many as fit, and the aborted transactions that end
// in or after them.
func (j *journal) answer(from int64, most int) *sarama.FetchResponseBlock {
	block := &sarama.FetchResponseBlock{HighWaterMarkOffset: j.end, LastStableOffset: j.stable()}
	for _, b := range j.batches {
		if b.LastOffset() >= from && b.FirstOffset < block.LastStableOffset && len(block.RecordsSet) < most {
			block.RecordsSet = append(block.RecordsSet, &sarama.Records{RecordBatch: b})
		}
	}
	for i, a := range j.aborted {
		if j.last[i] >= from {
			block.AbortedTransactions = append(block.AbortedTransactions, a)
		}
	}
	slices.Reverse(block.AbortedTransactions) // no order is promised
	return block
}

func (j *journal) stable() int64 {
	stable := j.end
	for _, first := range j.begun {
		stable = min(stable, first)
	}
	return stable
}

// TestUnreadSeesWhatAReaderSees: an answer is passed over if and only if a reader
// of committed messages gets nothing of it.
func TestUnreadSeesWhatAReaderSees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := newJournal()
		for range rapid.IntRange(0, 20).Draw(t, "batches") {
			producer, records := int64(rapid.IntRange(0, 2).Draw(t, "producer")), rapid.IntRange(1, 3).Draw(t, "records")
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				j.plain(records)
			case 1, 2:
				j.transactional(producer, records)
			case 3:
				j.finish(producer, true)
			case 4:
				j.finish(producer, false)
			}
		}
		most := rapid.IntRange(1, 20).Draw(t, "most")
		for from := range j.stable() + 1 {
			j.check(t, from, most)
		}
	})
}

func (j *journal) check(t *rapid.T, from int64, most int) {
	block := j.answer(from, most)
	covered := from
	if n := len(block.RecordsSet); n > 0 {
		covered = max(from, block.RecordsSet[n-1].RecordBatch.LastOffset()+1)
	}
	want := slices.ContainsFunc(j.visible, func(o int64) bool { return o >= from && o < covered })
	next, shown := unread(block, from)
	if shown != want {
		t.Fatalf("shown %v, want %v: from %d to %d, visible %v", shown, want, from, covered, j.visible)
	}
	if !shown && next != covered {
		t.Fatalf("passed to %d, the answer reaches to %d", next, covered)
	}
}

// A producer's next transaction is not the one it aborted.
func TestUnreadAfterAnAbort(t *testing.T) {
	j := newJournal()
	j.transactional(1, 1)
	j.finish(1, false)
	next, shown := unread(j.answer(0, 9), 0)
	require.False(t, shown)
	require.EqualValues(t, 2, next)
	j.transactional(1, 1)
	j.finish(1, true)
	next, shown = unread(j.answer(0, 9), 0)
	require.True(t, shown)
	require.EqualValues(t, 2, next)
	next, shown = unread(j.answer(3, 9), 3)
	require.False(t, shown, "the marker of a commit")
	require.EqualValues(t, 4, next)
}

func TestUnreadOfOldFormatsAndParts(t *testing.T) {
	next, shown := unread(&sarama.FetchResponseBlock{RecordsSet: []*sarama.Records{{MsgSet: &sarama.MessageSet{}}}}, 3)
	require.True(t, shown, "a message set is not looked into")
	require.EqualValues(t, 3, next)

	part := &sarama.RecordBatch{FirstOffset: 3, LastOffsetDelta: 4, PartialTrailingRecord: true}
	next, shown = unread(&sarama.FetchResponseBlock{RecordsSet: []*sarama.Records{{RecordBatch: part}}}, 3)
	require.False(t, shown)
	require.EqualValues(t, 3, next, "nothing is known of what did not fit")
}
