package sink_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward/bench/internal/sink"
)

func TestPayloadsAreRead(t *testing.T) {
	for _, number := range []int{0, 7, 1_234_567} {
		payload := sink.Payload(number)
		read, err := sink.Usual.Number(payload)
		require.NoError(t, err)
		require.Equal(t, number, read)
		require.True(t, json.Valid(payload), string(payload))
		require.InDelta(t, sink.PayloadBytes, len(payload), 8)
	}
	large := sink.Shape{Blocks: 3}
	blocks := strings.Repeat(strings.Repeat("x", 64), 3)
	payload := []byte(strings.TrimSuffix(string(sink.Payload(7)), `"}`) + `","more":"` + blocks + `"}`)
	read, err := large.Number(payload)
	require.NoError(t, err)
	require.Equal(t, 7, read)
	for _, other := range [][]byte{sink.Payload(7), payload[:len(payload)-1], append(payload, ' ')} {
		_, err := large.Number(other)
		require.Error(t, err)
	}
	require.NotEqual(t, sink.Payload(1)[20:], sink.Payload(2)[20:], "identifiers differ")
	for _, other := range []string{"", `{"number":`, `{"number":x,"customer":""}`, `{"total":5}`} {
		_, err := sink.Usual.Number([]byte(other))
		require.Error(t, err, other)
	}
}

// records gives a check the events of these numbers.
func records(c *sink.Check, numbers ...int) {
	for _, n := range numbers {
		c.Record(0, []byte(sink.Usual.Key(n)), sink.Payload(n))
	}
}

func TestACheckFindsWhatIsNotAsItWasWritten(t *testing.T) {
	for name, test := range map[string]struct {
		numbers []int
		below   int
		want    string
	}{
		"all":          {[]int{1, 0, 2}, 3, ""},
		"one key":      {[]int{0, sink.Usual.Keys, 2 * sink.Usual.Keys}, 3, ""},
		"missing":      {[]int{0, 2}, 3, "it has 2 records of 3 events"},
		"gap in a key": {[]int{0, 2 * sink.Usual.Keys}, 2, "where 10000 was due"},
		"twice":        {[]int{0, 1, 0}, 3, "came again"},
		"disorder":     {[]int{0, 2 * sink.Usual.Keys, sink.Usual.Keys}, 3, "came again, or after a later one"},
	} {
		c := sink.NewCheck(sink.Usual)
		records(c, test.numbers...)
		if test.want == "" {
			require.NoError(t, c.Complete(test.below), name)
		} else {
			require.ErrorContains(t, c.Complete(test.below), test.want, name)
		}
	}
	c := sink.NewCheck(sink.Usual)
	c.Record(0, []byte("a-9"), sink.Payload(1))
	require.ErrorContains(t, c.Complete(1), "event 1 has the key")
	c = sink.NewCheck(sink.Usual)
	c.Record(0, []byte(sink.Usual.Key(1)), sink.Payload(1))
	c.Record(1, []byte(sink.Usual.Key(1)), sink.Payload(1+sink.Usual.Keys))
	require.ErrorContains(t, c.Complete(2), "event 10001 of a-1 is in partition 1, others are in 0")
	c = sink.NewCheck(sink.Usual)
	c.Record(0, []byte("a-1"), sink.Payload(1)[:100])
	require.ErrorContains(t, c.Complete(1), "has 100 bytes, of 3")
	c = sink.NewCheck(sink.Usual)
	c.Record(0, []byte("a-1"), []byte("no payload"))
	require.ErrorContains(t, c.Complete(1), "no payload of the benchmark")
}

// newTopic makes the topic events, or those that begin so, and returns the brokers that have it.
func newTopic(t *testing.T, shape sink.Shape) (*sink.Topic, []string) {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	topic, err := sink.Create(t.Context(), cluster.ListenAddrs(), "events", shape)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, topic.Remove(context.WithoutCancel(t.Context()))) })
	return topic, cluster.ListenAddrs()
}

func TestATopicIsReadFromWhereItWasReadBefore(t *testing.T) {
	topic, brokers := newTopic(t, sink.Usual)
	write := func(from, to int) {
		client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DefaultProduceTopic("events"))
		require.NoError(t, err)
		defer client.Close()
		for n := from; n < to; n++ {
			record := &kgo.Record{Key: []byte(sink.Usual.Key(n)), Value: sink.Payload(n), Timestamp: time.UnixMilli(int64(n))}
			require.NoError(t, client.ProduceSync(t.Context(), record).FirstErr())
		}
	}
	write(0, 20)
	read, err := topic.Read(t.Context(), 20)
	require.NoError(t, err)
	require.Equal(t, 20, read.Records)
	require.Equal(t, 20, read.Batches, "each was sent alone")
	require.Equal(t, []time.Time{time.UnixMilli(0), time.UnixMilli(19)}, []time.Time{read.First, read.Last})
	warm, from := read.Warm()
	require.Equal(t, 14, warm, "the first third is warming up")
	require.Equal(t, time.UnixMilli(6), from)

	write(20, 25)
	read, err = topic.Read(t.Context(), 25)
	require.NoError(t, err)
	require.Equal(t, 5, read.Records)
	written, err := topic.Written(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(25), written)

	write(24, 26)
	_, err = topic.Read(t.Context(), 26)
	require.ErrorContains(t, err, "came again")
}

// Several topics are one reading: what they have together is all, once and in order.
func TestSeveralTopicsAreReadAsOne(t *testing.T) {
	shape := sink.Shape{Keys: 4, Topics: 3, Partitions: 2}
	topic, brokers := newTopic(t, shape)
	require.Equal(t, "events.{aggregate_type}", topic.Route())
	require.Equal(t, "'order-' || (n % 4 % 3)", shape.TypeSQL("n"))
	require.Equal(t, 6, shape.All())
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	require.NoError(t, err)
	defer client.Close()
	write := func(numbers ...int) {
		for _, n := range numbers {
			record := &kgo.Record{Topic: fmt.Sprintf("events.order-%d", n%4%3), Key: []byte(shape.Key(n)), Value: sink.Payload(n)}
			require.NoError(t, client.ProduceSync(t.Context(), record).FirstErr())
		}
	}
	write(0, 1, 2, 3, 4, 5)
	read, err := topic.Read(t.Context(), 6)
	require.NoError(t, err)
	require.Equal(t, 6, read.Records)
	written, err := topic.Written(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(6), written)
	write(6, 11)
	_, err = topic.Read(t.Context(), 8)
	require.ErrorContains(t, err, "event 11 of a-3 came where 7 was due")
}

func TestMarkersOfTransactionsAreNoBatches(t *testing.T) {
	topic, brokers := newTopic(t, sink.Usual)
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DefaultProduceTopic("events"), kgo.TransactionalID("bench"))
	require.NoError(t, err)
	defer client.Close()
	for i := range 2 {
		require.NoError(t, client.BeginTransaction())
		for n := range 10 {
			client.Produce(t.Context(), &kgo.Record{Key: []byte(sink.Usual.Key(i*10 + n)), Value: sink.Payload(i*10 + n)}, nil)
		}
		require.NoError(t, client.Flush(t.Context()))
		require.NoError(t, client.EndTransaction(t.Context(), kgo.TryCommit))
	}
	read, err := topic.Read(t.Context(), 20)
	require.NoError(t, err)
	require.Equal(t, 20, read.Records)
	require.LessOrEqual(t, read.Batches, 20, fmt.Sprint(read))
	require.Positive(t, read.Batches)
}
