package kafka

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/record"
)

const someTopic, partitionCount = "orders.order", 3

const oneKey = "payments:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a"

func cluster(t *testing.T) []string {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(partitionCount, someTopic))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c.ListenAddrs()
}

func producer(t *testing.T, brokers []string, transactional string) sarama.SyncProducer {
	t.Helper()
	cfg := sarama.NewConfig()
	cfg.Version = sarama.V2_8_0_0
	cfg.Producer.Return.Successes = true
	cfg.Producer.RequiredAcks = sarama.WaitForAll
	cfg.Producer.Partitioner = sarama.NewManualPartitioner
	if transactional != "" {
		cfg.Producer.Idempotent = true
		cfg.Producer.Transaction.ID = transactional
		cfg.Net.MaxOpenRequests = 1
	}
	p, err := sarama.NewSyncProducer(brokers, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// send sends a record with the key in its header; more is name and value of
// further headers.
func send(t *testing.T, p sarama.SyncProducer, partition int32, at time.Time, headers ...string) {
	t.Helper()
	headers = append([]string{outbox.HeaderKey}, headers...)
	var all []sarama.RecordHeader
	for pair := range slices.Chunk(headers, 2) {
		all = append(all, sarama.RecordHeader{Key: []byte(pair[0]), Value: []byte(pair[1])})
	}
	_, _, err := p.SendMessage(&sarama.ProducerMessage{Topic: someTopic, Partition: partition, Timestamp: at, Headers: all, Value: sarama.StringEncoder("v")})
	require.NoError(t, err)
}

func TestFindCopiesInTheAggregatesPartition(t *testing.T) {
	brokers := cluster(t)
	p := producer(t, brokers, "")
	at := time.UnixMilli(1_795_219_200_000).UTC()
	home := publisher.Partition([]byte("A"), partitionCount)
	other := (home + 1) % partitionCount

	send(t, p, home, at.Add(-time.Hour), oneKey) // too old to be read
	send(t, p, home, at, "payments:other")
	send(t, p, home, at.Add(time.Second), oneKey)
	send(t, p, home, at.Add(2*time.Second), oneKey, record.HeaderReplayID, "R")
	send(t, p, other, at.Add(3*time.Second), oneKey, record.HeaderRepairID, "G")

	s := Search{Brokers: brokers, Topic: someTopic, Key: oneKey, RecordKey: []byte("A"), From: at}
	got, err := FindCopies(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, []int32{home}, got.Partitions)
	inHome := []Copy{
		{Partition: home, Offset: 2, Timestamp: at.Add(time.Second)},
		{Partition: home, Offset: 3, Timestamp: at.Add(2 * time.Second), ReplayID: "R"},
	}
	require.Equal(t, inHome, got.Copies)

	s.RecordKey = nil
	got, err = FindCopies(t.Context(), s)
	require.NoError(t, err)
	require.Len(t, got.Partitions, partitionCount)
	require.ElementsMatch(t, append(inHome, Copy{Partition: other, Offset: 0, Timestamp: at.Add(3 * time.Second), RepairID: "G"}), got.Copies)
}

// The end of each partition is a transaction's marker, which no consumer is
// ever given: waiting for a record there would never end.
func TestFindCopiesSeesWhatIsCommittedOnly(t *testing.T) {
	brokers := cluster(t)
	at := time.UnixMilli(1_795_219_200_000).UTC()
	one := producer(t, brokers, "one")
	for i, commit := range []bool{true, false, true, false} {
		require.NoError(t, one.BeginTxn())
		send(t, one, 0, at.Add(time.Duration(i)*time.Second), oneKey)
		if commit {
			require.NoError(t, one.CommitTxn())
		} else {
			require.NoError(t, one.AbortTxn())
		}
	}
	// An open transaction of another producer: what lies behind is not stable.
	two := producer(t, brokers, "two")
	require.NoError(t, two.BeginTxn())
	send(t, two, 0, at.Add(9*time.Second), oneKey)
	t.Cleanup(func() { require.NoError(t, two.AbortTxn()) })

	got, err := FindCopies(t.Context(), Search{Brokers: brokers, Topic: someTopic, Key: oneKey, From: at})
	require.NoError(t, err)
	require.Equal(t, []Copy{
		{Partition: 0, Offset: 0, Timestamp: at},
		{Partition: 0, Offset: 4, Timestamp: at.Add(2 * time.Second)},
	}, got.Copies)
}

// TestCompactedOfNoTopic: what is missing can be made; of a cluster that does not answer nobody knows that.
func TestCompactedOfNoTopic(t *testing.T) {
	brokers := cluster(t)
	_, err := Compacted(t.Context(), Cluster{Brokers: brokers}, []string{"nowhere"})
	require.ErrorContains(t, err, "look up topic nowhere")
	require.ErrorContains(t, err, "`outboxctl topics create --config FILE` where a route leads to it, or with `kafka-topics.sh --bootstrap-server "+strings.Join(brokers, ",")+" --create --topic nowhere`")
	_, err = Compacted(t.Context(), Cluster{Brokers: []string{"127.0.0.1:1"}}, []string{"nowhere"})
	require.ErrorContains(t, err, "127.0.0.1:1")
	require.NotContains(t, err.Error(), "topics create")
}

func TestFindCopiesFails(t *testing.T) {
	brokers := cluster(t)
	none, err := FindCopies(t.Context(), Search{Brokers: brokers, Topic: "nowhere", Key: oneKey})
	require.NoError(t, err, "a topic that is not there has no copy")
	require.Equal(t, &Copies{Topic: "nowhere", Partitions: []int32{}, Copies: []Copy{}, NoTopic: true}, none)
	_, err = FindCopies(t.Context(), Search{Brokers: []string{"127.0.0.1:1"}, Topic: someTopic, Key: oneKey})
	require.ErrorContains(t, err, "look up topic orders.order at [127.0.0.1:1]")

	send(t, producer(t, brokers, ""), 0, time.Now(), oneKey)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = FindCopies(ctx, Search{Brokers: brokers, Topic: someTopic, Key: oneKey, From: time.UnixMilli(0)})
	require.ErrorIs(t, err, context.Canceled)
}

// A broker that takes connections and says nothing, as a stopped one: an interrupt ends
// the question long before the answer's time is over.
func TestASilentBrokerIsNotWaitedForAfterAnInterrupt(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for {
			if _, err := listener.Accept(); err != nil { // and it stays open, until the process ends
				return
			}
			cancel()
		}
	}()
	t.Cleanup(func() { require.NoError(t, listener.Close()) })
	brokers := []string{listener.Addr().String()}
	for name, ask := range map[string]func() error{
		"copies": func() error {
			_, err := FindCopies(ctx, Search{Brokers: brokers, Topic: someTopic, Key: oneKey})
			return err
		},
		"compacted": func() error {
			_, err := Compacted(ctx, Cluster{Brokers: brokers}, []string{someTopic})
			return err
		},
	} {
		ended := make(chan error, 1)
		go func() { ended <- ask() }()
		select {
		case err := <-ended:
			require.Error(t, err, name)
		case <-time.After(answerTimeout / 2):
			require.Fail(t, "it waits", name)
		}
	}
}

func TestMatchesSkipsWhatLiesBeforeTheOffset(t *testing.T) {
	record := func(delta int64) *sarama.Record {
		return &sarama.Record{OffsetDelta: delta, TimestampDelta: time.Duration(delta) * time.Second,
			Headers: []*sarama.RecordHeader{{Key: []byte(outbox.HeaderKey), Value: []byte(oneKey)}}}
	}
	first := time.UnixMilli(1_795_219_200_000).UTC()
	batch := &sarama.RecordBatch{FirstOffset: 10, LastOffsetDelta: 2, FirstTimestamp: first, MaxTimestamp: first.Add(time.Hour),
		Records: []*sarama.Record{record(0), record(1), record(2)}}
	got := matches(batch, 11, 5, oneKey)
	require.Equal(t, []Copy{
		{Partition: 5, Offset: 11, Timestamp: first.Add(time.Second)}, {Partition: 5, Offset: 12, Timestamp: first.Add(2 * time.Second)},
	}, got)
	batch.LogAppendTime = true
	require.Equal(t, first.Add(time.Hour), matches(batch, 12, 5, oneKey)[0].Timestamp)
}
