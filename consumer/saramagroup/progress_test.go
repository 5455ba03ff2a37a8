package saramagroup_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup"
)

// TestOffsetsFollowTheDatabase: while progress cannot be saved, no offset moves.
func TestOffsetsFollowTheDatabase(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.produce(5)
		h := newHandler(nil)
		stop, _ := k.run(h, defect{})
		require.NoError(t, h.awaitEach(5))
		<-time.After(2 * time.Second)
		require.Equal(t, [2]int64{5, 5}, k.committed())
		h.db.mu.Lock()
		h.db.away = errors.New("the database is away")
		h.db.mu.Unlock()
		k.produce(5)
		require.NoError(t, h.awaitEach(10))
		<-time.After(time.Minute)
		require.Equal(t, [2]int64{5, 5}, k.committed())
		h.db.mu.Lock()
		h.db.away = nil
		h.db.mu.Unlock()
		<-time.After(2 * time.Second)
		require.Equal(t, [2]int64{10, 10}, k.committed())
		require.NoError(t, stop())
	})
}

// TestAnIdleGroupNoticesAFailover: no message comes that would make it look.
func TestAnIdleGroupNoticesAFailover(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.produce(5)
		h := newHandler(nil)
		stop, _ := k.run(h, defect{})
		require.NoError(t, h.awaitEach(5))
		<-time.After(2 * time.Second)
		require.Equal(t, [2]int64{5, 5}, k.committed())
		h.db.mu.Lock()
		h.db.history = "promoted"
		delete(h.db.marks, 1)
		h.db.mu.Unlock()
		since := time.Now()
		_, err := h.await(5) // partition 1 once more
		require.NoError(t, err)
		require.Less(t, time.Since(since), 8*time.Second, "before Kafka is asked whether the partitions are at their end")
		require.NoError(t, stop())
	})
}

// TestFailoverRewinds: the database is promoted to a copy that lacks the last
// commits, while the group runs. What it lacks is delivered again.
func TestFailoverRewinds(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.produce(10)
		h := newHandler(nil)
		stop, _ := k.run(h, defect{})
		_, err := h.await(20)
		require.NoError(t, err)
		<-time.After(2 * time.Second)
		require.Equal(t, [2]int64{10, 10}, k.committed())
		h.db.mu.Lock()
		h.db.history = "promoted"
		h.db.marks[0] = consumer.Mark{Topic: topic, Partition: 0, High: 3}
		delete(h.db.marks, 1)
		h.db.mu.Unlock()
		k.produce(1) // the next commit finds out
		recs, err := h.await(6 + 1 + 10 + 1 + 2)
		require.NoError(t, err)
		require.NoError(t, stop())
		again := offsets(recs, 0)
		slices.Sort(again)
		require.Equal(t, []int64{4, 5, 6, 7, 8, 9, 10}, slices.Compact(again))
		again = offsets(recs, 1)
		slices.Sort(again)
		require.Equal(t, []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, slices.Compact(again))
		require.Equal(t, [2]int64{11, 11}, k.committed())
	})
}

// TestAFailingMessageHoldsBackItsAggregateAlone, in a real session: the messages
// of other keys are finished, and the offset waits.
func TestAFailingMessageHoldsBackItsAggregateAlone(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		var msgs []*sarama.ProducerMessage
		for i := range 40 {
			msgs = append(msgs, &sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder(string(rune('a' + i%4)))})
		}
		k.send(msgs...)
		release := make(chan struct{})
		h := newHandler(func(_ context.Context, rec consumer.Record, _ int) (consumer.Outcome, error) {
			select {
			case <-release:
			default:
				if string(rec.Key) == "c" {
					return 0, errors.New("broken")
				}
			}
			return consumer.Processed, nil
		})
		stop, _ := k.run(h, defect{}, func(c *saramagroup.Config) { c.Concurrency = 3 })
		recs, err := h.await(30)
		require.NoError(t, err)
		require.False(t, slices.ContainsFunc(recs, func(r consumer.Record) bool { return string(r.Key) == "c" }))
		<-time.After(2 * time.Second)
		require.Equal(t, int64(2), k.offset(0))
		close(release)
		recs, err = h.await(10)
		require.NoError(t, err)
		require.True(t, slices.IsSorted(offsets(recs, 0)), "the key's own order is kept")
		require.NoError(t, stop())
		require.Equal(t, int64(40), k.offset(0))
	})
}

// TestTheWindowIsBounded: of an aggregate that fails for ever, a partition takes in
// no more than MaxHeld messages. Those of others that are finished do not count.
func TestTheWindowIsBounded(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		var msgs []*sarama.ProducerMessage
		for i := range 50 {
			msgs = append(msgs, &sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder(string("aab"[i%3]))})
		}
		k.send(msgs...)
		h := newHandler(func(_ context.Context, rec consumer.Record, _ int) (consumer.Outcome, error) {
			if string(rec.Key) == "a" {
				return 0, errors.New("broken")
			}
			return consumer.Processed, nil
		})
		stop, _ := k.run(h, defect{}, func(c *saramagroup.Config) { c.MaxHeld = 20 })
		recs, err := h.await(9)
		require.NoError(t, err)
		require.EqualValues(t, 26, recs[8].Source.Offset, "20 of a wait from offset 28 on")
		<-time.After(5 * time.Minute)
		require.Empty(t, h.finished)
		require.NoError(t, stop())
	})
}

// TestTheWindowIsBoundedInBytes, and a message larger than that passes alone.
func TestTheWindowIsBoundedInBytes(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		for _, key := range []string{"a", "b", "c"} {
			k.send(&sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder(key), Value: sarama.ByteEncoder(make([]byte, 1000))})
		}
		h := newHandler(func(_ context.Context, rec consumer.Record, attempt int) (consumer.Outcome, error) {
			if string(rec.Key) == "a" && attempt < 5 {
				return 0, errors.New("broken")
			}
			return consumer.Processed, nil
		})
		stop, _ := k.run(h, defect{}, func(c *saramagroup.Config) { c.MaxHeldBytes, c.Concurrency = 100, 3 })
		recs, err := h.await(3)
		require.NoError(t, err)
		require.NoError(t, stop())
		require.Equal(t, []int64{0, 1, 2}, offsets(recs, 0), "nothing was taken in behind the large one")
	})
}

// TestDeliveriesOfAPartitionRunAtOnce, as many as Concurrency says, and never two
// of one key.
func TestDeliveriesOfAPartitionRunAtOnce(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		var msgs []*sarama.ProducerMessage
		for i := range 40 {
			msgs = append(msgs, &sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder(string(rune('a' + i%5)))})
		}
		k.send(msgs...)
		var mu sync.Mutex
		running, most, twice := make(map[string]int), 0, false
		change := func(key string, by int) {
			mu.Lock()
			defer mu.Unlock()
			if running[key] += by; running[key] == 0 {
				delete(running, key)
			}
			most, twice = max(most, len(running)), twice || running[key] > 1
		}
		h := newHandler(func(_ context.Context, rec consumer.Record, _ int) (consumer.Outcome, error) {
			change(string(rec.Key), 1)
			<-time.After(time.Second)
			change(string(rec.Key), -1)
			return consumer.Processed, nil
		})
		stop, _ := k.run(h, defect{}, func(c *saramagroup.Config) { c.Concurrency = 3 })
		recs, err := h.await(40)
		require.NoError(t, err)
		require.NoError(t, stop())
		require.Equal(t, 3, most)
		require.False(t, twice)
		last := make(map[string]int64)
		for _, rec := range recs {
			key := string(rec.Key)
			require.LessOrEqual(t, last[key], rec.Source.Offset, "key %s", key)
			last[key] = rec.Source.Offset
		}
	})
}

// TestBatchesAreGathered: messages that share a transaction come together, up to
// Max, and a few that come alone wait for their linger only.
func TestBatchesAreGathered(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		h := newHandler(nil)
		h.batch = &consumer.BatchOptions{Max: 20, Linger: 50 * time.Millisecond}
		k.produce(100)
		stop, _ := k.run(h, defect{})
		_, err := h.await(200)
		require.NoError(t, err)
		require.NoError(t, stop())
		require.Less(t, len(h.batches), 40)
		require.Equal(t, 20, slices.Max(h.batches))
		require.Equal(t, [2]int64{100, 100}, k.committed())
	})
}
