package saramagroup

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/backoff"
)

func queued(offset int64, key string, batch *consumer.BatchOptions, at time.Time) *message {
	return &message{record: consumer.Record{Source: consumer.Source{Offset: offset}, Key: []byte(key)}, batch: batch, arrived: at}
}

// TestLanesKeepTheirPromises: whatever fails, is held back or takes long, the
// messages of a key are finished in order, one batch at a time; the mark passes
// what is finished without a gap, and in the end everything.
func TestLanesKeepTheirPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1000, 0)
		l := newLanes(backoff.Jittered{Min: time.Second, Max: 4 * time.Second}, 0)
		n := rapid.IntRange(1, 60).Draw(t, "messages")
		var taken [][]*message
		seen := observed{done: make(map[int64]bool), running: make(map[string]int), last: make(map[string]int64)}
		mark, added := int64(-1), 0
		var times []time.Time
		options := &consumer.BatchOptions{Max: rapid.IntRange(1, 5).Draw(t, "max"), Linger: 20 * time.Millisecond}
		for mark < int64(n-1) {
			switch move := rapid.IntRange(0, 9).Draw(t, "move"); {
			case move < 3 && added < n:
				key := fmt.Sprint(rapid.IntRange(0, 4).Draw(t, "key"))
				var batch *consumer.BatchOptions
				if rapid.Bool().Draw(t, "batch") {
					batch = options
				}
				m := queued(int64(added), key, batch, now)
				m.eventTime = now.Add(time.Duration(rapid.IntRange(-9, 9).Draw(t, "time")) * time.Hour)
				times = append(times, m.eventTime)
				l.add(m)
				added++
			case move < 6:
				batch := l.take(now, math.MaxInt64)
				if batch == nil {
					now = now.Add(time.Second)
					continue
				}
				seen.taken(t, batch, options.Max)
				taken = append(taken, batch)
			case len(taken) > 0:
				i := rapid.IntRange(0, len(taken)-1).Draw(t, "which")
				seen.settle(t, l, taken[i], now)
				taken = append(taken[:i], taken[i+1:]...)
				if high, latest, moved := l.passed(); moved {
					if mark = high; !latest.Equal(slices.MaxFunc(times[:mark+1], time.Time.Compare)) {
						t.Fatalf("stream time is %s at %d, of %v", latest, mark, times)
					}
					for o := range mark + 1 {
						if !seen.done[o] {
							t.Fatalf("the mark is at %d, %d is not finished", mark, o)
						}
					}
				}
			}
		}
		if messages, bytes := l.held(); messages != 0 || bytes != 0 || len(l.keys) != 0 {
			t.Fatalf("%d messages, %d bytes, %d keys are left", messages, bytes, len(l.keys))
		}
	})
}

// observed is what the test has seen of the lanes.
type observed struct {
	done    map[int64]bool
	running map[string]int
	last    map[string]int64 // finished of each key
}

// taken wants one message, or a batch of at most max, of keys that nobody has.
func (o observed) taken(t *rapid.T, batch []*message, most int) {
	for _, m := range batch {
		if o.running[string(m.record.Key)] > 0 {
			t.Fatalf("key %s is delivered twice at once", m.record.Key)
		}
		if m.batch == nil && len(batch) > 1 || len(batch) > most && m.batch != nil {
			t.Fatalf("%d messages share a delivery", len(batch))
		}
	}
	for _, m := range batch {
		o.running[string(m.record.Key)]++
	}
}

// settle finishes some messages of a delivery and fails others, as a handler
// of batches does: what follows a failure in its key is held back.
func (o observed) settle(t *rapid.T, l *lanes, batch []*message, now time.Time) {
	failed := make(map[string]bool)
	for _, m := range batch {
		key, offset := string(m.record.Key), m.record.Source.Offset
		o.running[key]--
		switch {
		case failed[key]:
			l.retry(m, now, false)
		case rapid.IntRange(0, 3).Draw(t, "outcome") == 0:
			failed[key] = true
			l.retry(m, now, true)
		default:
			if last, ok := o.last[key]; ok && last >= offset {
				t.Fatalf("key %s: %d is finished after %d", key, offset, last)
			}
			o.last[key], o.done[offset] = offset, true
			l.finish(m)
		}
	}
}

// TestFinishedMessagesAreNotHeld: behind one that fails, nothing is left of any
// number that are finished, and what waits counts with its headers.
func TestFinishedMessagesAreNotHeld(t *testing.T) {
	now := time.Unix(1000, 0)
	l := newLanes(backoff.Jittered{Min: time.Second, Max: time.Second}, 0)
	poison := queued(0, "poison", nil, now)
	poison.record.Value, poison.record.Headers = make([]byte, 100), []consumer.Header{{Name: "name", Value: make([]byte, 1000)}}
	l.add(poison)
	l.retry(l.take(now, math.MaxInt64)[0], now, true)
	for i := range int64(100_000) {
		l.add(queued(1+i, fmt.Sprint(i), nil, now))
		l.finish(l.take(now, math.MaxInt64)[0])
	}
	messages, bytes := l.held()
	require.Equal(t, []int{1, len("poison") + 100 + len("name") + 1000, 1}, []int{messages, bytes, len(l.keys)})
	require.Less(t, cap(l.window), 10)
}

func TestAFailureHoldsBackItsKeyAlone(t *testing.T) {
	now := time.Unix(1000, 0)
	l := newLanes(backoff.Jittered{Min: time.Second, Max: time.Second}, 0)
	for i, key := range []string{"a", "b", "a", "c"} {
		l.add(queued(int64(i), key, nil, now))
	}
	first := l.take(now, math.MaxInt64)
	require.Len(t, first, 1)
	pause := l.retry(first[0], now, true)
	var order []int64
	for batch := l.take(now, math.MaxInt64); batch != nil; batch = l.take(now, math.MaxInt64) {
		order = append(order, batch[0].record.Source.Offset)
		l.finish(batch[0])
	}
	require.Equal(t, []int64{1, 3}, order)
	_, _, moved := l.passed()
	require.False(t, moved, "nothing passes the message that fails")
	require.Equal(t, now.Add(pause), l.next(now))
	now = now.Add(pause)
	l.finish(l.take(now, math.MaxInt64)[0])
	l.finish(l.take(now, math.MaxInt64)[0])
	high, _, _ := l.passed()
	require.EqualValues(t, 3, high)
}

func TestABatchWaitsForItsLinger(t *testing.T) {
	now := time.Unix(1000, 0)
	l := newLanes(backoff.Jittered{Min: time.Second, Max: time.Second}, 0)
	options := &consumer.BatchOptions{Max: 3, Linger: 20 * time.Millisecond}
	l.add(queued(0, "a", options, now))
	l.add(queued(1, "a", options, now))
	require.Nil(t, l.take(now, math.MaxInt64))
	require.Equal(t, now.Add(20*time.Millisecond), l.next(now))
	l.add(queued(2, "b", options, now))
	require.Len(t, l.take(now, math.MaxInt64), 3, "a full batch leaves at once")
	l.add(queued(3, "c", options, now))
	require.Nil(t, l.take(now.Add(19*time.Millisecond), math.MaxInt64))
	require.Len(t, l.take(now.Add(20*time.Millisecond), math.MaxInt64), 1)
}

func TestRewindTo(t *testing.T) {
	topic, other := uuid.UUID{1}, uuid.UUID{2}
	for name, c := range map[string]struct {
		metadata string
		topic    uuid.UUID
		high     int64
		known    bool
		to       int64
		back     bool
	}{
		"the database has it":                  {metadata("", topic, 9), topic, 9, true, 0, false},
		"the database has more":                {metadata("", topic, 9), topic, 12, true, 0, false},
		"the database has lost some":           {metadata("", topic, 9), topic, 4, true, 5, true},
		"the database has lost all":            {metadata("", topic, 9), topic, 0, false, 0, true},
		"an offset set by hand":                {"", topic, 4, true, 0, false},
		"an offset of another client":          {"onceward:1:x", topic, 4, true, 0, false},
		"one that resembles ours":              {"onceward:2:x:9", topic, 4, true, 0, false},
		"one without a number":                 {"onceward:2:" + topic.String(), topic, 4, true, 0, false},
		"a group that has never consumed":      {"", topic, 0, false, 0, false},
		"another topic, which the base has":    {metadata("", other, 9), topic, 4, true, 0, false},
		"another topic, of which nobody knows": {metadata("", other, 9), topic, 0, false, 0, false},
		"no id in Kafka":                       {metadata("", other, 9), uuid.Nil, 4, true, 5, true},
		"a cluster, and the base has it":       {metadata("a", topic, 9), topic, 9, true, 0, false},
		"a cluster, and the base lost some":    {metadata("a", topic, 9), topic, 4, true, 5, true},
		"another topic of a cluster":           {metadata("a", other, 9), topic, 4, true, 0, false},
		"of an earlier release":                {"onceward:1:9", topic, 4, true, 5, true},
		"no id at all":                         {metadata("", uuid.Nil, 9), uuid.Nil, 4, true, 5, true},
	} {
		to, back := rewindTo(c.metadata, c.topic, c.high, c.known)
		require.Equal(t, c.back, back, name)
		require.Equal(t, c.to, to, name)
	}
}

func TestMarkOf(t *testing.T) {
	topic, other := uuid.UUID{1}, uuid.UUID{2}
	mark := func(id uuid.UUID, high int64) consumer.Mark {
		return consumer.Mark{Topic: "t", Partition: 1, TopicID: id, High: high}
	}
	for name, c := range map[string]struct {
		all   []consumer.Mark
		topic uuid.UUID
		want  int64 // -1: none
	}{
		"none":                           {nil, topic, -1},
		"of other partitions":            {[]consumer.Mark{{Topic: "t", High: 3}, {Topic: "u", Partition: 1, High: 3}}, topic, -1},
		"the same":                       {[]consumer.Mark{mark(other, 9), mark(topic, 4)}, topic, 4},
		"another one":                    {[]consumer.Mark{mark(other, 9)}, topic, -1},
		"one without id":                 {[]consumer.Mark{mark(other, 9), mark(uuid.Nil, 4)}, topic, 4},
		"the same before one without id": {[]consumer.Mark{mark(uuid.Nil, 9), mark(topic, 4)}, topic, 4},
		"nobody knows, the one of now":   {[]consumer.Mark{mark(topic, 4), mark(other, 9)}, uuid.Nil, 4},
	} {
		got, ok := markOf(c.all, place{"t", 1}, c.topic)
		require.Equal(t, c.want >= 0, ok, name)
		if ok {
			require.Equal(t, c.want, got.High, name)
		}
	}
}

// A message that is held must not hold the batch that it came with.
func TestRecordsHaveTheirOwnBytes(t *testing.T) {
	batch := []byte("keyvalueheader")
	rec := record(&sarama.ConsumerMessage{Key: batch[:3], Value: batch[3:8], Headers: []*sarama.RecordHeader{{Key: batch[:3], Value: batch[8:]}, nil}})
	clear(batch)
	require.Equal(t, consumer.Record{Key: []byte("key"), Value: []byte("value"), Headers: []consumer.Header{{Name: "key", Value: []byte("header")}}}, rec)
	require.Nil(t, record(&sarama.ConsumerMessage{}).Value)
}

// What is in doubt waits for what lies before it of its key, and comes alone then.
func TestDoubtsComeAlone(t *testing.T) {
	now, options := time.Unix(1000, 0), &consumer.BatchOptions{Max: 10}
	l := newLanes(backoff.Jittered{Min: time.Second, Max: time.Minute}, 0)
	l.doubt = span{2, 4}
	for i, key := range []string{"a", "b", "a", "c", "b", "c"} {
		l.add(queued(int64(i), key, options, now))
	}
	require.EqualValues(t, 3, l.careful(now).record.Source.Offset, "a has one before")
	require.Equal(t, l.window[:2], l.take(now, 2))
	require.EqualValues(t, 3, l.careful(now).record.Source.Offset)
	require.Nil(t, l.take(now, math.MaxInt64), "b is in hand, a and c have what is in doubt before")
	l.finish(l.window[0])
	require.EqualValues(t, 2, l.careful(now).record.Source.Offset)
}
