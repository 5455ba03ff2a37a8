package saramagroup_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
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
		inHand, consumerGroup := 0, false
		change := func(by int, cautious bool) {
			mu.Lock()
			defer mu.Unlock()
			inHand += by
			consumerGroup = consumerGroup || cautious && inHand > 1
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
		require.False(t, consumerGroup, "something else was in hand")
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

// hands count how much is in hand at a time, at the most.
type hands struct {
	mu        sync.Mutex
	now, most int
}

func (h *hands) change(by int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now += by
	h.most = max(h.most, h.now)
}

func (h *hands) work(d time.Duration) {
	h.change(1)
	<-time.After(d)
	h.change(-1)
}

// TestOneSuspectAtATime: of all partitions that were found open one message is handled
// at a time. When the process dies, only that one can be to blame.
func TestOneSuspectAtATime(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.produce(5)
		var hands hands
		h := newHandler(func(context.Context, consumer.Record, int) (consumer.Outcome, error) {
			hands.work(100 * time.Millisecond)
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
		require.Equal(t, 1, hands.most)
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

// setBack is a partition of 60 messages whose group crashed, with its mark at 39, and
// whose offset somebody has set back to 5.
func setBack(k *kafka, h *handler, read int64) {
	k.t.Helper()
	var msgs []*sarama.ProducerMessage
	for i := range 60 {
		msgs = append(msgs, &sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder(string(rune('a' + i%6)))})
	}
	k.send(msgs...)
	k.commits(0, 5, "")
	h.batch = &consumer.BatchOptions{Max: 4, Linger: time.Millisecond}
	h.db.marks[0] = consumer.Mark{Topic: topic, TopicID: k.topicID(), High: 39, Read: read, Crashed: true}
}

func small(c *saramagroup.Config) { c.MaxHeld = 10 }

// TestSetBackAfterACrash: what the mark proves finished has not killed the process that
// had read beyond it. When the offset is set back there, it is delivered as usual, in
// batches, and only what the dead process may have had in hand is not.
func TestSetBackAfterACrash(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		h := newHandler(func(_ context.Context, rec consumer.Record, attempt int) (consumer.Outcome, error) {
			if rec.Source.Offset == 38 && attempt < 4 { // its aggregate alone waits
				return 0, errors.New("broken")
			}
			return consumer.Processed, nil
		})
		setBack(k, h, 45)
		stop, _ := k.run(h, defect{}, small)
		recs, err := h.await(55)
		require.NoError(t, err)
		require.NoError(t, stop())
		got := offsets(recs, 0)
		require.Contains(t, got[:40], int64(40), "it did not wait for the aggregate that fails")
		slices.Sort(got)
		require.Equal(t, int64(5), got[0])
		require.Len(t, slices.Compact(got), 55)
		var cautiously []int64
		for _, src := range h.cautiously {
			cautiously = append(cautiously, src.Offset)
		}
		slices.Sort(cautiously)
		require.Equal(t, []int64{40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54}, cautiously)
		require.Contains(t, h.batches, 4)
		require.EqualValues(t, 60, k.offset(0))
	})
}

// TestSetBackWithDoubtsLeft: a crash is still in doubt when a session has read further
// since, but not to the end of the stretch, as it ends in a quiet partition. What it has
// finished is not to blame either: of an offset that is set back then, only the rest of
// the stretch is delivered cautiously.
func TestSetBackWithDoubtsLeft(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		h := newHandler(nil)
		setBack(k, h, 45)
		h.db.set(func(d *database) {
			m := d.marks[0]
			m.High, m.Inherited = 51, true
			d.marks[0] = m
		})
		stop, _ := k.run(h, defect{}, small)
		_, err := h.await(55)
		require.NoError(t, err)
		require.NoError(t, stop())
		require.Len(t, h.cautiously, 45+10-52)
		for _, src := range h.cautiously {
			require.GreaterOrEqual(t, src.Offset, int64(52))
		}
		require.Contains(t, h.batches, 4)
	})
}

// TestCrashOnTheWayBack: a process that dies of a message below the mark, which an
// earlier program ignored for instance, has read no further, or has left an offset of
// its own: from there on everything is in doubt.
func TestCrashOnTheWayBack(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		h := newHandler(nil)
		setBack(k, h, 12)
		stop, _ := k.run(h, defect{}, small)
		_, err := h.await(55)
		require.NoError(t, err)
		require.NoError(t, stop())
		require.Len(t, h.cautiously, 12+10-5)
	})
	inFakeTime(t, func(k *kafka) { // its own doubts may reach beyond the mark
		h := newHandler(nil)
		setBack(k, h, 5)
		stop, _ := k.run(h, defect{})
		_, err := h.await(55)
		require.NoError(t, err)
		require.NoError(t, stop())
		require.Len(t, h.cautiously, 55)
	})
	inFakeTime(t, func(k *kafka) {
		stuck := newHandler(func(_ context.Context, rec consumer.Record, _ int) (consumer.Outcome, error) {
			if rec.Source.Offset == 5 {
				return 0, errors.New("not yet")
			}
			return consumer.Processed, nil
		})
		setBack(k, stuck, 45)
		stop, _ := k.run(stuck, defect{}, small)
		<-time.After(5 * time.Second)
		stuck.db.set(func(d *database) { require.EqualValues(t, 60, d.marks[0].Read) })
		require.NoError(t, stop())
		require.EqualValues(t, 5, k.offset(0))

		again := newHandler(nil)
		again.db = stuck.db
		again.db.set(func(d *database) {
			m := d.marks[0]
			m.Crashed = true
			d.marks[0] = m
		})
		stop, _ = k.run(again, defect{}, small)
		_, err := again.await(55)
		require.NoError(t, err)
		require.NoError(t, stop())
		require.Len(t, again.cautiously, 55)
	})
}

// TestEndOnTheWayBack: a session that has not come to what is in doubt leaves no crash
// behind, and up to where it has read is saved.
func TestEndOnTheWayBack(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		h := newHandler(failing)
		setBack(k, h, 45)
		stop, _ := k.run(h, defect{}, small)
		<-time.After(5 * time.Second)
		h.db.set(func(d *database) { require.EqualValues(t, 15, d.marks[0].Read) })
		require.NoError(t, stop())
		require.Empty(t, h.cautiously)
		require.False(t, h.db.doubts[0])
	})
}

// TestDoubtsDoNotGrow: a stretch that is read in several sessions, of which the ones end
// well and the others do not, ends where it ended at first. Before, each start made it as
// long as the first one, and a quiet partition never got out of it.
func TestDoubtsDoNotGrow(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		var log bytes.Buffer
		h := newHandler(nil)
		h.db.marks[0] = consumer.Mark{Topic: topic, TopicID: k.topicID(), High: -1, Read: 4, Crashed: true}
		h.db.marks[1] = consumer.Mark{Topic: topic, TopicID: k.topicID(), Partition: 1, High: -1}
		for i := range 6 {
			k.produce(4)
			stop, _ := k.run(h, defect{}, small, withLog(&log))
			_, err := h.await(8)
			require.NoError(t, err)
			require.NoError(t, stop())
			require.Equal(t, i < 3, h.db.doubts[0], "after %d messages", 4*(i+1))
			h.db.set(func(d *database) {
				m := d.marks[0]
				m.Crashed, m.Inherited = d.doubts[0], d.doubts[0] && i != 1 // the second one has died
				d.marks[0] = m
			})
		}
		for _, src := range h.cautiously {
			require.Less(t, src.Offset, int64(4+10))
		}
		require.Len(t, h.cautiously, 4+10)
		require.Equal(t, 2, strings.Count(log.String(), "did not end"), log.String())
		require.Equal(t, 2, strings.Count(log.String(), "what an earlier session may have died of"))
		require.Equal(t, 4, strings.Count(log.String(), "until=14"))
	})
}

// TestNoRedriveBesideASuspect: while a message is delivered cautiously no letter is
// handled, which might kill the process, and the other way round; both get their turns.
func TestNoRedriveBesideASuspect(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.produce(20)
		var hands hands
		h := newHandler(func(context.Context, consumer.Record, int) (consumer.Outcome, error) {
			hands.work(700 * time.Millisecond)
			return consumer.Processed, nil
		})
		h.house.redrive = func(context.Context) error { hands.work(700 * time.Millisecond); return nil }
		for p := range int32(2) {
			h.db.marks[p] = consumer.Mark{Topic: topic, Partition: p, High: -1, Crashed: true}
		}
		stop, _ := k.run(h, defect{}, func(c *saramagroup.Config) { c.HousekeepingInterval = time.Second })
		_, err := h.await(40)
		require.NoError(t, err)
		require.GreaterOrEqual(t, h.house.runs(), 5)
		require.NoError(t, stop())
		require.Len(t, h.cautiously, 40)
		require.Equal(t, 1, hands.most)
	})
}
