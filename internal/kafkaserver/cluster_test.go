//go:build e2e

package kafkaserver_test

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/onceward/onceward/internal/kafkaserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start starts a cluster that is stopped with the test.
func start(t *testing.T, opts kafkaserver.Options) *kafkaserver.Cluster {
	t.Helper()
	c, err := kafkaserver.Start(t.Context(), opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop(context.Background())) })
	return c
}

// topic is the one of every test.
const topic = "events"

// produce writes one record with acks=all and returns its offset.
func produce(t *testing.T, c *kafkaserver.Cluster, value string) int64 {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.Addrs()...), kgo.RecordDeliveryTimeout(time.Minute))
	require.NoError(t, err)
	defer client.Close()
	record, err := client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte(value)}).First()
	require.NoError(t, err)
	return record.Offset
}

// read returns the first n values of the topic, which has one partition.
func read(t *testing.T, c *kafkaserver.Cluster, n int) []string {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.Addrs()...), kgo.ConsumeTopics(topic))
	require.NoError(t, err)
	defer client.Close()
	var values []string
	for len(values) < n {
		fetches := client.PollFetches(t.Context())
		require.NoError(t, fetches.Err())
		for record := range fetches.RecordsAll() {
			values = append(values, string(record.Value))
		}
	}
	return values
}

func TestOneBrokerKeepsItsRecordsThroughAKillAndAStop(t *testing.T) {
	c := start(t, kafkaserver.Options{})
	require.NoError(t, c.CreateTopic(t.Context(), topic, 1, map[string]string{"retention.ms": "-1"}))
	require.ErrorIs(t, c.CreateTopic(t.Context(), topic, 1, nil), kerr.TopicAlreadyExists)
	require.EqualValues(t, 0, produce(t, c, "first"))
	addrs, pid := c.Addrs(), c.PID(0)

	c.Kill(0)
	require.Error(t, syscall.Kill(pid, 0), "the killed broker is still there")
	require.NoError(t, c.StartBroker(t.Context(), 0))
	require.ErrorContains(t, c.StartBroker(t.Context(), 0), "it is running")
	require.Equal(t, addrs, c.Addrs())
	require.EqualValues(t, 1, produce(t, c, "second"))

	require.NoError(t, c.StopBroker(t.Context(), 0))
	require.NoError(t, c.StartBroker(t.Context(), 0))
	require.EqualValues(t, 2, produce(t, c, "third"))
	require.Equal(t, []string{"first", "second", "third"}, read(t, c, 3))
}

func TestTransactionsWorkOnOneBroker(t *testing.T) {
	c := start(t, kafkaserver.Options{})
	require.NoError(t, c.CreateTopic(t.Context(), topic, 1, nil))
	client, err := kgo.NewClient(kgo.SeedBrokers(c.Addrs()...), kgo.TransactionalID("one"))
	require.NoError(t, err)
	defer client.Close()
	require.NoError(t, client.BeginTransaction())
	require.NoError(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("in")}).FirstErr())
	require.NoError(t, client.EndTransaction(t.Context(), kgo.TryCommit))
	require.Equal(t, []string{"in"}, read(t, c, 1))
}

func TestThreeBrokersGoOnWhenOneIsKilled(t *testing.T) {
	c := start(t, kafkaserver.Options{Brokers: 3, Settings: map[string]string{"broker.session.timeout.ms": "3000"}})
	require.Len(t, c.Addrs(), 3)
	require.NoError(t, c.CreateTopic(t.Context(), topic, 3, nil))
	produce(t, c, "with three")
	for i := range 3 {
		c.Kill(i)
		produce(t, c, "with two")
		require.NoError(t, c.StartBroker(t.Context(), i))
	}
}

func TestClientsAreSentToTheAdvertisedAddress(t *testing.T) {
	c := start(t, kafkaserver.Options{Advertise: func(int, string) string { return "127.0.0.1:1" }})
	require.Equal(t, []string{"127.0.0.1:1"}, c.Addrs())
	require.NoError(t, c.CreateTopic(t.Context(), topic, 1, nil), "requests of the cluster itself use the real address")
}

func TestTopicsAreNotCreatedByUse(t *testing.T) {
	c := start(t, kafkaserver.Options{})
	client, err := kgo.NewClient(kgo.SeedBrokers(c.Addrs()...), kgo.AllowAutoTopicCreation(), kgo.UnknownTopicRetries(0))
	require.NoError(t, err)
	defer client.Close()
	err = client.ProduceSync(t.Context(), &kgo.Record{Topic: "nobody.made.it"}).FirstErr()
	require.ErrorIs(t, err, kerr.UnknownTopicOrPartition)
}

func TestAFolderOfOnesOwnIsKeptAndUsedAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster")
	first, err := kafkaserver.Start(t.Context(), kafkaserver.Options{Dir: dir})
	require.NoError(t, err)
	require.NoError(t, first.CreateTopic(t.Context(), topic, 1, nil))
	produce(t, first, "kept")
	require.NoError(t, first.Stop(t.Context()))
	require.FileExists(t, first.LogFile(0))

	second := start(t, kafkaserver.Options{Dir: dir})
	require.Equal(t, []string{"kept"}, read(t, second, 1))
}

func TestAFailedStartTellsTheEndOfTheLogAndLeavesNothing(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	_, err := kafkaserver.Start(t.Context(), kafkaserver.Options{Settings: map[string]string{"num.io.threads": "0"}})
	require.ErrorContains(t, err, "num.io.threads")
	_, err = kafkaserver.Start(t.Context(), kafkaserver.Options{JVM: []string{"-Xmx384m", "-Dcom.sun.management.jmxremote.port=none"}})
	require.Error(t, err)
	left, err := os.ReadDir(temporary)
	require.NoError(t, err)
	for _, entry := range left {
		require.NotContains(t, entry.Name(), "onceward")
	}
}
