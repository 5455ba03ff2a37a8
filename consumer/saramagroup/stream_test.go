package saramagroup_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup"
)

func failing(context.Context, consumer.Record, int) (consumer.Outcome, error) {
	return 0, errors.New("broken")
}

// TestEveryPartitionHasAMark from the start, before anything is finished: stream
// time must wait for it. It says where the group really begins.
func TestEveryPartitionHasAMark(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.produce(5)
		require.NoError(t, k.cluster.DeleteRecords(topic, 0, 3))
		h := newHandler(failing)
		stop, _ := k.run(h, defect{})
		<-time.After(20 * time.Second)
		require.Equal(t, map[int32]consumer.Mark{
			0: {Topic: topic, Partition: 0, TopicID: k.topicID(), Low: 3, High: 2, Read: 5},
			1: {Topic: topic, Partition: 1, TopicID: k.topicID(), Low: 0, High: -1, Read: 5},
		}, h.db.marks)
		require.NoError(t, stop())
		require.Equal(t, [2]int64{-1, -1}, k.committed())

		well := newHandler(nil)
		well.db = h.db
		stop, _ = k.run(well, defect{})
		recs, err := well.await(2 + 5)
		require.NoError(t, err)
		require.NoError(t, stop())
		require.Equal(t, []int64{3, 4}, offsets(recs, 0))
		mark, _ := h.db.mark(0)
		require.Equal(t, consumer.Mark{Topic: topic, Partition: 0, TopicID: k.topicID(), Low: 3, High: 4}, mark)
		require.Equal(t, [2]int64{5, 5}, k.committed())
	})
}

// TestMarksBeginAtAnOffsetSetByHand: it is followed, and is where the mark begins.
func TestMarksBeginAtAnOffsetSetByHand(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.produce(5)
		h := newHandler(nil)
		stop, _ := k.run(h, defect{})
		_, err := h.await(10)
		require.NoError(t, err)
		require.NoError(t, stop())
		k.commitByHand(0, 3)
		k.commitByHand(1, 0)

		h = newHandler(nil)
		stop, _ = k.run(h, defect{})
		recs, err := h.await(2 + 5)
		require.NoError(t, err)
		require.NoError(t, stop())
		require.Equal(t, []int64{3, 4}, offsets(recs, 0))
		mark, _ := h.db.mark(0)
		require.Equal(t, consumer.Mark{Topic: topic, Partition: 0, TopicID: k.topicID(), Low: 3, High: 4}, mark)
	})
}

// commitByHand does what kafka-consumer-groups --reset-offsets does.
func (k *kafka) commitByHand(partition int32, offset int64) {
	k.t.Helper()
	c := k.client(nil)
	defer closing(k.t, c)
	coordinator, err := c.Coordinator("billing")
	require.NoError(k.t, err)
	request := &sarama.OffsetCommitRequest{Version: 2, ConsumerGroup: "billing", ConsumerGroupGeneration: sarama.GroupGenerationUndefined, RetentionTime: -1}
	request.AddBlock(topic, partition, offset, 0, "")
	answer, err := coordinator.CommitOffset(request)
	require.NoError(k.t, err)
	require.Equal(k.t, sarama.ErrNoError, answer.Errors[topic][partition])
}

// TestNoMessageBeforeTheMarks: while they cannot be saved, nothing is taken; and
// a database that changes in between is asked again.
func TestNoMessageBeforeTheMarks(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.produce(5)
		h := newHandler(nil)
		asked := 0
		h.db.asked = func() { // with the lock
			switch asked++; asked {
			case 1:
				h.db.away = errors.New("the database is away")
			case 2:
				h.db.history = "promoted"
			}
		}
		stop, _ := k.run(h, defect{})
		<-time.After(time.Minute)
		require.Empty(t, h.finished)
		h.db.set(func(d *database) { d.away, d.history = nil, "another" })
		_, err := h.await(10)
		require.NoError(t, err)
		require.NoError(t, stop())
		require.GreaterOrEqual(t, asked, 3)
		require.Equal(t, [2]int64{5, 5}, k.committed())
	})
}

// TestAnEmptyDatabaseBeginsAgain although it has marks from the first moment on:
// they stand for nothing finished.
func TestAnEmptyDatabaseBeginsAgain(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.produce(5)
		first := newHandler(nil)
		stop, _ := k.run(first, defect{})
		_, err := first.await(10)
		require.NoError(t, err)
		require.NoError(t, stop())
		require.Equal(t, [2]int64{5, 5}, k.committed())

		empty := newDatabase()
		broken := newHandler(failing)
		broken.db = empty
		stop, _ = k.run(broken, defect{})
		<-time.After(10 * time.Second)
		require.NoError(t, stop())
		require.Len(t, empty.marks, 2)

		again := newHandler(nil)
		again.db = empty
		stop, _ = k.run(again, defect{})
		recs, err := again.await(10)
		require.NoError(t, err)
		require.NoError(t, stop())
		require.Equal(t, []int64{0, 1, 2, 3, 4}, offsets(recs, 0))
	})
}

// TestReadToTheEnd: an idle partition is said to be read to its end if and only if
// nothing is left for the group, whatever the log ends with.
func TestReadToTheEnd(t *testing.T) {
	for name, c := range map[string]struct {
		log  []string // what each transaction does, one message each; "" is none
		high int64
	}{
		"nothing was ever written":         {nil, -1},
		"a message":                        {[]string{""}, 0},
		"the marker of a commit":           {[]string{"commit"}, 1},
		"an aborted transaction":           {[]string{"abort"}, 1},
		"an abort after a commit":          {[]string{"commit", "abort"}, 3},
		"a commit after an abort":          {[]string{"abort", "commit"}, 3},
		"aborts alone after a message":     {[]string{"", "abort", "abort", "abort"}, 6},
		"a message outside after a commit": {[]string{"commit", ""}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			inFakeTime(t, func(k *kafka) {
				k.write(c.log...)
				h := newHandler(nil)
				started := time.Now()
				stop, _ := k.run(h, defect{})
				<-time.After(9 * time.Second)
				_, ends := h.db.mark(0)
				require.Zero(t, ends, "too early")
				<-time.After(6 * time.Second)
				mark, ends := h.db.mark(0)
				require.Equal(t, 1, ends, "after %s", time.Since(started))
				require.Equal(t, consumer.Mark{Topic: topic, TopicID: k.topicID(), Low: 0, High: c.high, AtEnd: true}, mark)
				require.Equal(t, c.high+1, k.offset(0), "the committed offset follows")
				<-time.After(2 * time.Minute)
				_, ends = h.db.mark(0)
				require.Equal(t, 3, ends, "once a minute")

				k.write("commit")
				<-time.After(9 * time.Second)
				_, ends = h.db.mark(0)
				require.Equal(t, 3, ends)
				<-time.After(6 * time.Second)
				mark, ends = h.db.mark(0)
				require.Equal(t, 4, ends)
				require.Equal(t, c.high+2, mark.High)
				require.NoError(t, stop())
			})
		})
	}
}

// write has a producer do each of the things with one message in partition 0.
func (k *kafka) write(log ...string) {
	k.t.Helper()
	k.producer(transactional, func(p sarama.AsyncProducer) {
		for _, what := range log {
			if what == "" {
				k.send(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("plain")})
				continue
			}
			require.NoError(k.t, p.BeginTxn())
			k.sendWith(p, &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(what)})
			if what == "commit" {
				require.NoError(k.t, p.CommitTxn())
			} else {
				require.NoError(k.t, p.AbortTxn())
			}
		}
	})
}

func transactional(s *sarama.Config) {
	s.Producer.Idempotent = true
	s.Producer.Transaction.ID = "relay"
	s.Net.MaxOpenRequests = 1
}

// An open transaction may still bring messages that are older than anything the
// group has finished.
func TestAnOpenTransactionIsNoEnd(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		h := newHandler(nil)
		k.producer(transactional, func(p sarama.AsyncProducer) {
			require.NoError(t, p.BeginTxn())
			k.sendWith(p, &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("later")})
			stop, _ := k.run(h, defect{})
			<-time.After(50 * time.Second)
			_, ends := h.db.mark(0)
			require.Zero(t, ends)
			_, ends = h.db.mark(1)
			require.Equal(t, 1, ends, "the other partition is empty")
			require.NoError(t, p.CommitTxn())
			_, err := h.await(1)
			require.NoError(t, err)
			<-time.After(12 * time.Second)
			mark, ends := h.db.mark(0)
			require.Equal(t, 1, ends)
			require.EqualValues(t, 1, mark.High)
			require.NoError(t, stop())
		})
	})
}

// What sarama knows of the high-water mark says nothing about what it has read:
// here its fetches bring nothing, and the topic has messages.
func TestMessagesThatDoNotArriveAreNoEnd(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.produce(5)
		stalled := make(chan struct{})
		k.cluster.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
			k.cluster.KeepControl()
			if req.(*kmsg.FetchRequest).MaxWaitMillis > 0 { // not a question, which has a connection of its own
				k.cluster.SleepControl(func() { <-stalled })
			}
			return nil, nil, false
		})
		h := newHandler(nil)
		stop, _ := k.run(h, defect{})
		<-time.After(3 * time.Minute)
		mark, ends := h.db.mark(0)
		close(stalled)
		require.Zero(t, ends)
		require.EqualValues(t, -1, mark.High)
		_, err := h.await(10)
		require.NoError(t, err)
		<-time.After(12 * time.Second)
		mark, ends = h.db.mark(0)
		require.Equal(t, 1, ends)
		require.EqualValues(t, 4, mark.High)
		require.NoError(t, stop())
	})
}

// A message in hand is not finished, however long nothing else comes.
func TestAMessageInHandIsNoEnd(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.produce(1)
		h := newHandler(func(_ context.Context, rec consumer.Record, attempt int) (consumer.Outcome, error) {
			switch {
			case rec.Source.Partition == 0 && attempt < 4:
				return 0, errors.New("broken")
			case rec.Source.Partition == 1:
				<-time.After(time.Minute)
			}
			return consumer.Processed, nil
		})
		stop, _ := k.run(h, defect{}, func(c *saramagroup.Config) { c.RetryMin, c.RetryMax = 30*time.Second, 30*time.Second })
		<-time.After(40 * time.Second)
		for p := range int32(2) {
			_, ends := h.db.mark(p)
			require.Zero(t, ends, "partition %d", p)
		}
		_, err := h.await(2)
		require.NoError(t, err)
		<-time.After(3 * time.Minute)
		for p := range int32(2) {
			mark, ends := h.db.mark(p)
			require.NotZero(t, ends, "partition %d", p)
			require.Zero(t, mark.High)
		}
		require.NoError(t, stop())
	})
}

// A message that comes between the question and its answer is newer than that.
// The other partition is busy, or its question would wait for the same mutex of
// sarama, and fake time for that.
func TestAnAnswerThatComesLateIsDropped(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.send(&sarama.ProducerMessage{Topic: topic, Partition: 1})
		asked, answer, release := make(chan struct{}), make(chan struct{}), make(chan struct{})
		k.cluster.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
			k.cluster.KeepControl()
			if req.(*kmsg.FetchRequest).MaxWaitMillis > 0 {
				return nil, nil, false
			}
			k.cluster.DropControl()
			close(asked)
			k.cluster.SleepControl(func() { <-answer })
			return emptyAnswer(req.(*kmsg.FetchRequest)), nil, true
		})
		h := newHandler(func(_ context.Context, rec consumer.Record, _ int) (consumer.Outcome, error) {
			if rec.Source.Partition == 1 {
				<-release
			}
			return consumer.Processed, nil
		})
		stop, _ := k.run(h, defect{})
		<-asked
		k.send(&sarama.ProducerMessage{Topic: topic})
		_, err := h.await(1)
		require.NoError(t, err)
		<-time.After(2 * time.Second)
		close(answer)
		<-time.After(2 * time.Second)
		mark, ends := h.db.mark(0)
		require.Zero(t, ends)
		require.Zero(t, mark.High)
		close(release)
		require.NoError(t, stop())
	})
}

// emptyAnswer is that of a leader whose partitions hold nothing.
func emptyAnswer(req *kmsg.FetchRequest) *kmsg.FetchResponse {
	resp := req.ResponseKind().(*kmsg.FetchResponse)
	for _, t := range req.Topics {
		topic := kmsg.FetchResponseTopic{Topic: t.Topic}
		for _, p := range t.Partitions {
			answer := kmsg.NewFetchResponseTopicPartition()
			answer.Partition, answer.RecordBatches = p.Partition, []byte{}
			answer.LastStableOffset = 0
			topic.Partitions = append(topic.Partitions, answer)
		}
		resp.Topics = append(resp.Topics, topic)
	}
	return resp
}

// TestAnEndIsSavedAtOnceOrNotAtAll: while it waits for the database, or for the
// next commit, something may come that is older than what others finish.
func TestAnEndIsSavedAtOnceOrNotAtAll(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		h := newHandler(failing)
		stop, _ := k.run(h, defect{}, func(c *saramagroup.Config) { c.CommitInterval = 20 * time.Second })
		<-time.After(16 * time.Second) // partition 0 was read to its end, and nothing is saved
		k.send(&sarama.ProducerMessage{Topic: topic})
		<-time.After(2 * time.Minute)
		mark, ends := h.db.mark(0)
		require.Zero(t, ends)
		require.EqualValues(t, -1, mark.High)
		_, ends = h.db.mark(1)
		require.NotZero(t, ends, "the other partition")
		require.NoError(t, stop())
	})
	inFakeTime(t, func(k *kafka) {
		h := newHandler(failing)
		stop, _ := k.run(h, defect{})
		<-time.After(8 * time.Second)
		h.db.set(func(d *database) { d.away = errors.New("the database is away") })
		<-time.After(20 * time.Second)
		k.send(&sarama.ProducerMessage{Topic: topic})
		<-time.After(20 * time.Second)
		h.db.set(func(d *database) { d.away = nil })
		<-time.After(10 * time.Second)
		_, ends := h.db.mark(0)
		require.Zero(t, ends)
		require.NoError(t, stop())
	})
}

// Retention that removes nothing but markers loses nothing, and must not stop a
// group that comes later: the offset was committed behind them.
func TestMarkersThatAreGoneStopNobody(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.write("commit", "abort")
		h := newHandler(nil)
		stop, _ := k.run(h, defect{})
		_, err := h.await(1)
		require.NoError(t, err)
		<-time.After(15 * time.Second)
		require.NoError(t, stop())
		require.NoError(t, k.cluster.DeleteRecords(topic, 0, 4))

		later := newHandler(nil)
		later.db = h.db
		stop, ended := k.run(later, defect{})
		k.write("commit")
		select {
		case err := <-ended:
			t.Fatal(fmt.Errorf("the group stopped: %w", err))
		case rec := <-later.finished:
			require.EqualValues(t, 4, rec.Source.Offset)
		}
		require.NoError(t, stop())
	})
}

// Kafka is cut off: what cannot be asked is asked later. In less than the ten
// minutes after which sarama looks for topics that have changed, with a mutex in
// hand for which fake time stands still.
func TestAnEndIsAskedForAfterAnOutage(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.write("commit")
		h := newHandler(nil)
		stop, _ := k.run(h, defect{})
		_, err := h.await(1)
		require.NoError(t, err)
		<-time.After(5 * time.Second)
		k.cut(true)
		<-time.After(3 * time.Minute)
		_, ends := h.db.mark(0)
		require.Zero(t, ends)
		k.cut(false)
		<-time.After(3 * time.Minute)
		_, ends = h.db.mark(0)
		require.NotZero(t, ends)
		require.NoError(t, stop())
	})
}

// A leader that has moved is found, by the second question at the latest. In
// real time: sarama looks for it with a mutex in hand.
func TestTheEndIsAskedOfTheLeader(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(2), kfake.SeedTopics(1, topic))
	require.NoError(t, err)
	defer c.Close()
	client, err := sarama.NewClient(c.ListenAddrs(), sarama.NewConfig())
	require.NoError(t, err)
	defer closing(t, client)
	for range 4 {
		require.NoError(t, c.MoveTopicPartition(topic, 0, 1-c.LeaderFor(topic, 0)))
		_, ok, err := saramagroup.FindEnd(client, topic, 0, 0)
		if err != nil {
			require.False(t, ok)
			_, ok, err = saramagroup.FindEnd(client, topic, 0, 0)
		}
		require.NoError(t, err)
		require.True(t, ok)
	}
	_, ok, err := saramagroup.FindEnd(client, topic, 0, 3)
	require.ErrorIs(t, err, sarama.ErrOffsetOutOfRange)
	require.False(t, ok)
}
