package saramagroup_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup"
)

// TestAfterACrash (W6): a partition that was found open is delivered one message at a
// time, without batches, up to a little beyond what was read before; then as usual.
// One that fails meanwhile holds nobody else back.
func TestAfterACrash(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		var msgs []*sarama.ProducerMessage
		for i := range 60 {
			msgs = append(msgs, &sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder(string(rune('a' + i%6)))})
		}
		k.send(msgs...)
		var mu sync.Mutex
		inHand, crowd := 0, false
		change := func(by int, cautious bool) {
			mu.Lock()
			defer mu.Unlock()
			inHand += by
			crowd = crowd || cautious && inHand > 1
		}
		h := newHandler(func(_ context.Context, rec consumer.Record, attempt int) (consumer.Outcome, error) {
			cautious := rec.Source.Offset < 30
			change(1, cautious)
			<-time.After(10 * time.Millisecond)
			change(-1, cautious)
			if rec.Source.Offset == 2 && attempt < 4 {
				return 0, errors.New("broken")
			}
			return consumer.Processed, nil
		})
		h.batch = &consumer.BatchOptions{Max: 10, Linger: time.Millisecond}
		h.db.marks[0] = consumer.Mark{Topic: topic, High: -1, Read: 20, Crashed: true}
		stop, _ := k.run(h, defect{}, func(c *saramagroup.Config) { c.MaxHeld = 10 })
		recs, err := h.await(60)
		require.NoError(t, err)
		require.NoError(t, stop())
		require.False(t, crowd, "something else was in hand")
		require.Len(t, h.cautiously, 30+3)
		for _, src := range h.cautiously {
			require.Less(t, src.Offset, int64(30))
		}
		require.NotEmpty(t, h.batches, "later as usual")
		require.Contains(t, offsets(recs[:20], 0), int64(3), "the next aggregate did not wait for the one that fails")
		require.Equal(t, 2, h.db.closed, "both partitions were given back")
		mark, _ := h.db.mark(0)
		require.EqualValues(t, 59, mark.High)
	})
}

// TestOneSuspectAtATime: of all partitions that were found open one message is handled
// at a time. When the process dies, only that one can be to blame.
func TestOneSuspectAtATime(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.produce(5)
		var mu sync.Mutex
		inHand, most := 0, 0
		change := func(by int) {
			mu.Lock()
			defer mu.Unlock()
			inHand += by
			most = max(most, inHand)
		}
		h := newHandler(func(context.Context, consumer.Record, int) (consumer.Outcome, error) {
			change(1)
			<-time.After(100 * time.Millisecond)
			change(-1)
			return consumer.Processed, nil
		})
		for p := range int32(2) {
			h.db.marks[p] = consumer.Mark{Topic: topic, Partition: p, High: -1, Crashed: true}
		}
		stop, _ := k.run(h, defect{})
		_, err := h.await(10)
		require.NoError(t, err)
		require.NoError(t, stop())
		require.Len(t, h.cautiously, 10)
		require.Equal(t, 1, most)
	})
}

// TestReadIsSaved: how far a partition was read is saved although nothing is finished,
// because that is where a crash may lie; no offset moves by that.
func TestReadIsSaved(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.produce(5)
		h := newHandler(failing)
		stop, _ := k.run(h, defect{})
		<-time.After(10 * time.Second)
		h.db.set(func(d *database) { require.EqualValues(t, 5, d.marks[0].Read) })
		k.produce(2)
		<-time.After(10 * time.Second)
		h.db.set(func(d *database) {
			require.EqualValues(t, 7, d.marks[0].Read)
			require.EqualValues(t, -1, d.marks[0].High)
			require.Zero(t, d.closed)
		})
		require.NoError(t, stop())
		require.Equal(t, [2]int64{-1, -1}, k.committed())
	})
}
