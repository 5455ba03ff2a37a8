package sink_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward/bench/internal/sink"
)

func TestPayloadsAreRead(t *testing.T) {
	for _, number := range []int{0, 7, 1_234_567} {
		payload := sink.Payload(number)
		read, err := sink.Number(payload)
		require.NoError(t, err)
		require.Equal(t, number, read)
		require.True(t, json.Valid(payload), string(payload))
		require.InDelta(t, sink.PayloadBytes, len(payload), 8)
	}
	require.NotEqual(t, sink.Payload(1)[20:], sink.Payload(2)[20:], "identifiers differ")
	for _, other := range []string{"", `{"number":`, `{"number":x,"customer":""}`, `{"total":5}`} {
		_, err := sink.Number([]byte(other))
		require.Error(t, err, other)
	}
}

// records gives a check the events of these numbers.
func records(c *sink.Check, numbers ...int) {
	for _, n := range numbers {
		c.Record([]byte(sink.Key(n)), sink.Payload(n))
	}
}

func TestACheckFindsWhatIsNotAsItWasWritten(t *testing.T) {
	for name, test := range map[string]struct {
		numbers []int
		below   int
		want    string
	}{
		"all":          {[]int{1, 0, 2}, 3, ""},
		"one key":      {[]int{0, sink.Keys, 2 * sink.Keys}, 3, ""},
		"missing":      {[]int{0, 2}, 3, "it has 2 records of 3 events"},
		"gap in a key": {[]int{0, 2 * sink.Keys}, 2, "where 10000 was due"},
		"twice":        {[]int{0, 1, 0}, 3, "came again"},
		"disorder":     {[]int{0, 2 * sink.Keys, sink.Keys}, 3, "came again, or after a later one"},
	} {
		c := sink.NewCheck()
		records(c, test.numbers...)
		if test.want == "" {
			require.NoError(t, c.Complete(test.below), name)
		} else {
			require.ErrorContains(t, c.Complete(test.below), test.want, name)
		}
	}
	c := sink.NewCheck()
	c.Record([]byte("a-9"), sink.Payload(1))
	require.ErrorContains(t, c.Complete(1), "event 1 has the key")
	c = sink.NewCheck()
	c.Record([]byte("a-1"), []byte("no payload"))
	require.ErrorContains(t, c.Complete(1), "no payload of the benchmark")
}

// newTopic makes the topic events, and returns the brokers that have it.
func newTopic(t *testing.T) (*sink.Topic, []string) {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	topic, err := sink.Create(t.Context(), cluster.ListenAddrs(), "events")
	require.NoError(t, err)
	t.Cleanup(topic.Close)
	return topic, cluster.ListenAddrs()
}

func TestATopicIsReadFromWhereItWasReadBefore(t *testing.T) {
	topic, brokers := newTopic(t)
	write := func(from, to int) {
		client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DefaultProduceTopic("events"))
		require.NoError(t, err)
		defer client.Close()
		for n := from; n < to; n++ {
			require.NoError(t, client.ProduceSync(t.Context(), &kgo.Record{Key: []byte(sink.Key(n)), Value: sink.Payload(n)}).FirstErr())
		}
	}
	write(0, 20)
	read, err := topic.Read(t.Context(), 20)
	require.NoError(t, err)
	require.Equal(t, 20, read.Records)
	require.Equal(t, 20, read.Batches, "each was sent alone")
	require.False(t, read.Last.Before(read.First))

	write(20, 25)
	read, err = topic.Read(t.Context(), 25)
	require.NoError(t, err)
	require.Equal(t, 5, read.Records)
	ends, err := topic.Ends(t.Context())
	require.NoError(t, err)
	require.Len(t, ends, sink.Partitions)

	write(24, 26)
	_, err = topic.Read(t.Context(), 26)
	require.ErrorContains(t, err, "came again")
}

func TestMarkersOfTransactionsAreNoBatches(t *testing.T) {
	topic, brokers := newTopic(t)
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DefaultProduceTopic("events"), kgo.TransactionalID("bench"))
	require.NoError(t, err)
	defer client.Close()
	for i := range 2 {
		require.NoError(t, client.BeginTransaction())
		for n := range 10 {
			client.Produce(t.Context(), &kgo.Record{Key: []byte(sink.Key(i*10 + n)), Value: sink.Payload(i*10 + n)}, nil)
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
