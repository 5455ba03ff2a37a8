package produce

import (
	"fmt"
	"math"
	"net"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// newWindow returns a window of transactions, or of none, whose couriers go nowhere.
func newWindow(transactional bool) *window {
	return &window{
		limit: 1000, codec: sarama.CompressionNone, patience: Patience{1000, time.Millisecond, time.Second},
		transactional: transactional, producer: Producer{ID: 1},
		couriers: make(map[string]*courier), hire: func(address string) *courier { return &courier{link: Link{Address: address}} },
	}
}

// tagged returns a record of a partition with so many bytes.
func tagged(t *Topic, partition int32, tag uint64, bytes int) *Record {
	return &Record{Topic: t, Partition: partition, Bytes: bytes, Owner: tag}
}

// led is an answer that names one leader for all partitions.
func ledBy(t *Topic, addresses ...string) found {
	return found{topics: map[string]led{t.Name: {addresses: addresses}}}
}

// chain returns the tags of records.
func chain(first *Record) (tags []uint64) {
	for ; first != nil; first = first.next {
		tags = append(tags, first.Owner.(uint64))
	}
	return tags
}

func TestSequencesWrapAround(t *testing.T) {
	require.EqualValues(t, 7, after(3, 4))
	require.EqualValues(t, math.MaxInt32, after(math.MaxInt32-4, 4))
	require.EqualValues(t, 0, after(math.MaxInt32, 1), "behind the last number comes 0")
	require.EqualValues(t, 5, after(math.MaxInt32-4, 10))
}

// A batch holds what fits, in order, at least one record, and one that must be
// alone by itself.
func TestBatches(t *testing.T) {
	w, topic := newWindow(false), &Topic{Name: "t"}
	l := w.lane(topic, 0)
	sizes := []int{400, 400, 400, 5000, 10, 10, 10}
	for i, bytes := range sizes {
		l.add(tagged(topic, 0, uint64(i), bytes))
	}
	alone := tagged(topic, 0, 7, 10)
	alone.Alone = true
	l.add(alone)
	l.add(tagged(topic, 0, 8, 10))
	l.join(w.producer)
	next := int32(0)
	for _, want := range [][]uint64{{0, 1}, {2}, {3}, {4, 5, 6}, {7}, {8}} {
		l.build(1000, sarama.CompressionLZ4, false, time.Now())
		b := &l.batch.encoded
		require.Equal(t, next, b.FirstSequence)
		require.EqualValues(t, len(want)-1, b.LastOffsetDelta)
		require.Len(t, b.Records, len(want))
		for i, r := range b.Records {
			require.EqualValues(t, i, r.OffsetDelta)
		}
		require.Equal(t, l.batch.bytes >= tiny, b.Codec == sarama.CompressionLZ4, "what is tiny is not compressed")
		next += int32(len(want))
		require.Equal(t, want, chain(l.end()))
	}
	require.False(t, l.waits())
}

// Another id or epoch counts anew, another transaction of the same does not.
func TestSequencesOfAnEpoch(t *testing.T) {
	topic := &Topic{Name: "t"}
	l := &lane{topic: topic}
	for _, c := range []struct {
		producer Producer
		sequence int32
	}{
		{Producer{1, 0, 1}, 0}, {Producer{1, 0, 1}, 2}, {Producer{1, 0, 2}, 4}, {Producer{1, 1, 3}, 0}, {Producer{2, 1, 4}, 0}, {Producer{2, 1, 4}, 2},
	} {
		l.add(tagged(topic, 0, 0, 10))
		l.add(tagged(topic, 0, 1, 10))
		l.join(c.producer)
		l.build(1000, sarama.CompressionNone, false, time.Now())
		require.Equal(t, c.sequence, l.batch.encoded.FirstSequence)
		require.Equal(t, c.producer.ID, l.batch.encoded.ProducerID)
		require.Equal(t, c.producer.Epoch, l.batch.encoded.ProducerEpoch)
		l.end()
	}
}

// All that waits for a broker leaves in one request, as far as it fits; what does
// not is first in the next one.
func TestARequestTakesAllThatWaits(t *testing.T) {
	w, topic := newWindow(false), &Topic{Name: "t"}
	w.limit = requestBytes / 2
	now := time.Now()
	const partitions = 5
	for i := range int32(partitions) {
		w.add(tagged(topic, i, uint64(i), requestBytes/2-BatchOverhead))
	}
	q, next := w.wanted(now)
	require.Equal(t, question{topics: map[string]bool{"t": true}}, q)
	require.Zero(t, next)
	lost, why := w.found(ledBy(topic, "a", "a", "a", "a", "b"), now)
	require.Nil(t, lost)
	require.NoError(t, why)
	r, next := w.take(w.couriers["a"], now)
	require.Len(t, r.lanes, 2)
	require.Zero(t, next)
	r, _ = w.take(w.couriers["a"], now)
	require.Len(t, r.lanes, 2)
	require.EqualValues(t, 2, r.lanes[0].partition)
	r, _ = w.take(w.couriers["b"], now)
	require.Len(t, r.lanes, 1)
	r, _ = w.take(w.couriers["b"], now)
	require.Empty(t, r.lanes)
}

// What was refused waits, what was lost is tried again at once and waits then, and
// after so many tries it is over. Meanwhile nothing behind it is sent.
func TestTriesAndPauses(t *testing.T) {
	w, topic := newWindow(false), &Topic{Name: "t"}
	w.patience = Patience{3, time.Second, 4 * time.Second}
	now := time.Now()
	w.add(tagged(topic, 0, 0, 10))
	due := now
	for try, lost := range []bool{true, false, true} {
		w.found(ledBy(topic, "a"), now)
		r, next := w.take(w.couriers["a"], now)
		if due.After(now) {
			require.Empty(t, r.lanes)
			require.Equal(t, due, next)
			now = due
			r, _ = w.take(w.couriers["a"], now)
		}
		require.Len(t, r.lanes, 1)
		w.add(tagged(topic, 0, uint64(try+1), 10))
		require.True(t, w.again(r.lanes[0], lost, now))
		due = now.Add([]time.Duration{0, 2 * time.Second, 4 * time.Second}[try])
		require.Len(t, w.seeking, 1, "its leader is looked up")
	}
	w.found(ledBy(topic, "a"), now)
	r, _ := w.take(w.couriers["a"], due)
	require.False(t, w.again(r.lanes[0], true, due))
	require.Equal(t, []uint64{0}, chain(r.lanes[0].batch.first), "as it was first built")
}

// A leader that is not known is looked up again after a pause that grows; a topic
// that may not be asked for is lost.
func TestLeadersAreSought(t *testing.T) {
	w, topic := newWindow(false), &Topic{Name: "t"}
	now := time.Now()
	w.add(tagged(topic, 1, 0, 10))
	for look, pause := range []time.Duration{metadataBackoff, 2 * metadataBackoff, 4 * metadataBackoff, 8 * metadataBackoff} {
		q, _ := w.wanted(now)
		require.Equal(t, question{map[string]bool{"t": true}, look == doubts}, q, "and elsewhere, when that was in vain")
		w.found(ledBy(topic, "a"), now)
		q, next := w.wanted(now)
		require.Empty(t, q)
		require.Equal(t, now.Add(pause), next)
		now = next
	}
	w.found(found{topics: map[string]led{"other": {}}}, now)
	require.Len(t, w.seeking, 1)
	lost, why := w.found(found{topics: map[string]led{"t": {refused: sarama.ErrTopicAuthorizationFailed}}}, now)
	require.Equal(t, w.lane(topic, 1), lost)
	require.ErrorIs(t, why, sarama.ErrTopicAuthorizationFailed)
	w.add(tagged(topic, 1, 1, 10))
	q, _ := w.wanted(now.Add(time.Hour))
	require.Empty(t, q, "and sends nothing more")
}

// A lost connection has all that would go that way look its leader up first: what
// waits for the broker and what comes for it later, not only what was on its way. A
// leader that refuses is looked up for what it refused, and after some times elsewhere.
func TestALostConnectionHasItsLanesLookAgain(t *testing.T) {
	w, topic := newWindow(false), &Topic{Name: "t"}
	now := time.Now()
	for partition := range int32(3) {
		w.add(tagged(topic, partition, 0, 10))
	}
	w.found(ledBy(topic, "a", "a", "a"), now)
	a := w.couriers["a"]
	r, _ := w.take(a, now)
	require.Len(t, r.lanes, 3)
	w.acked(r.lanes[1])
	w.acked(r.lanes[2])
	w.add(tagged(topic, 1, 1, 10))
	require.Len(t, a.lanes, 1)
	w.dismiss(a)
	require.True(t, w.again(r.lanes[0], true, now))
	w.add(tagged(topic, 2, 1, 10))
	require.Empty(t, a.lanes)
	require.Len(t, w.seeking, 3)
	w.found(ledBy(topic, "a", "b", "a"), now)
	require.NotSame(t, a, w.couriers["a"])
	require.Len(t, w.couriers["a"].lanes, 2)
	require.Len(t, w.couriers["b"].lanes, 1)

	r, _ = w.take(w.couriers["a"], now)
	for try := range doubts + 1 {
		if q, _ := w.wanted(now); try > 0 {
			require.Equal(t, question{map[string]bool{"t": true}, (try+1)%doubts == 0}, q)
			w.found(ledBy(topic, "a"), now)
			now = now.Add(time.Minute)
			r, _ = w.take(w.couriers["a"], now)
		}
		require.True(t, w.again(r.lanes[0], false, now))
	}
}

// Nothing is sent to a partition that is not in the transaction; the next
// transaction needs it anew.
func TestPartitionsJoinEachTransaction(t *testing.T) {
	w, topic := newWindow(true), &Topic{Name: "t"}
	now := time.Now()
	for transaction := uint64(1); transaction <= 3; transaction++ {
		w.producer.Transaction = transaction
		w.add(tagged(topic, 0, transaction, 10))
		require.Len(t, w.joining, 1)
		require.Empty(t, w.seeking)
		lanes := w.joining
		w.joining = nil
		w.joined(lanes)
		w.found(ledBy(topic, "a"), now)
		w.add(tagged(topic, 0, transaction, 10))
		require.Empty(t, w.joining)
		r, _ := w.take(w.couriers["a"], now)
		require.Len(t, r.lanes, 1)
		require.True(t, r.lanes[0].batch.encoded.IsTransactional)
		require.EqualValues(t, 2*(transaction-1), r.lanes[0].batch.encoded.FirstSequence)
		w.acked(r.lanes[0])
	}
}

// replica is a partition as a broker keeps it: what it has, and what its producer
// wrote last.
type replica struct {
	log  []uint64
	next int32
	last sent
}

// sent is a batch as a broker sees it.
type sent struct {
	first int32
	tags  string
}

// append is what a leader does with a batch.
func (r *replica) append(l *lane) (refusal sarama.KError) {
	b := sent{l.batch.encoded.FirstSequence, fmt.Sprint(chain(l.batch.first))}
	switch b.first {
	case r.next:
	case r.last.first:
		if b != r.last {
			return sarama.ErrInvalidRecord // the same number, and other records
		}
		return sarama.ErrDuplicateSequenceNumber
	default:
		return sarama.ErrOutOfOrderSequenceNumber
	}
	r.log = append(r.log, chain(l.batch.first)...)
	r.next, r.last = after(b.first, l.batch.count), b
	return sarama.ErrNoError
}

// Whatever requests meet with, each partition has each record once, in order, and a
// broker never sees a number twice with other records: as a model of requests that
// are taken, refused, lost before or behind the broker, and leaders that move.
func TestWindowUnderFaults(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const partitions = 4
		w, topic := newWindow(false), &Topic{Name: "t"}
		replicas := make([]replica, partitions)
		addresses := []string{"a", "b", "", "a"}
		flying := make(map[*courier]request)
		added := make([][]uint64, partitions)
		acked := make([][]uint64, partitions)
		now, tag := time.Now(), uint64(0)
		sequence := rapid.SampledFrom([]int32{0, math.MaxInt32 - 20}).Draw(t, "sequence") // so that it wraps around
		for p := range int32(partitions) {
			l := w.lane(topic, p)
			l.producer, l.sequence, replicas[p].next = w.producer, sequence, sequence
		}
		flightless := func(c *courier) bool { _, busy := flying[c]; return !busy }
		settle := func(c *courier, cut bool, fate func(*lane) (reached, answered bool, refusal sarama.KError)) {
			r := flying[c]
			delete(flying, c)
			if cut {
				w.dismiss(c)
			}
			for _, l := range r.lanes {
				reached, answered, refusal := fate(l)
				if reached && refusal == sarama.ErrNoError {
					refusal = replicas[l.partition].append(l)
				}
				response := new(sarama.ProduceResponse)
				response.AddTopicPartition("t", l.partition, refusal)
				a := answer{response: response}
				if !reached || !answered {
					a = answer{err: net.ErrClosed}
				}
				switch v, cause := judgeAnswer(a, l); v {
				case verdictAcked:
					acked[l.partition] = append(acked[l.partition], chain(w.acked(l))...)
				case verdictAgain, verdictLost:
					require.True(t, w.again(l, v == verdictLost, now))
				case verdictFailed:
					t.Fatalf("partition %d: %v", l.partition, cause)
				}
			}
		}
		refusals := rapid.SampledFrom(append([]sarama.KError{sarama.ErrNoError, sarama.ErrNoError}, passingRefusals...))
		move := map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				for range rapid.IntRange(1, 20).Draw(t, "records") {
					p := rapid.Int32Range(0, partitions-1).Draw(t, "partition")
					w.add(tagged(topic, p, tag, rapid.IntRange(1, 600).Draw(t, "bytes")))
					added[p] = append(added[p], tag)
					tag++
				}
			},
			"find": func(*rapid.T) { w.found(ledBy(topic, addresses...), now) },
			"elect": func(t *rapid.T) {
				addresses[rapid.IntRange(0, partitions-1).Draw(t, "partition")] = rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "leader")
			},
			"wait": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 2000).Draw(t, "ms")) * time.Millisecond)
			},
			"send": func(*rapid.T) {
				for _, c := range w.couriers {
					if flightless(c) {
						if r, _ := w.take(c, now); len(r.lanes) > 0 {
							flying[c] = r
						}
					}
				}
			},
			"settle": func(t *rapid.T) {
				for _, c := range w.couriers {
					if !flightless(c) && rapid.Bool().Draw(t, c.link.Address) {
						reached, answered := rapid.Bool().Draw(t, "reached"), rapid.Bool().Draw(t, "answered")
						settle(c, !reached || !answered, func(*lane) (bool, bool, sarama.KError) { return reached, answered, refusals.Draw(t, "refusal") })
					}
				}
			},
		}
		t.Repeat(move)
		addresses = []string{"a", "a", "b", "b"}
		for left := true; left; {
			now = now.Add(time.Minute)
			w.found(ledBy(topic, addresses...), now)
			for _, c := range w.couriers {
				if flightless(c) {
					flying[c], _ = w.take(c, now)
				}
				settle(c, false, func(*lane) (bool, bool, sarama.KError) { return true, true, sarama.ErrNoError })
			}
			left = false
			for _, l := range topic.lanes {
				left = left || l != nil && l.waits()
			}
		}
		for p := range partitions {
			require.Equal(t, added[p], replicas[p].log, "partition %d", p)
			require.Equal(t, added[p], acked[p], "acknowledged of partition %d", p)
		}
	})
}
