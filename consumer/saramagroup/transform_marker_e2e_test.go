//go:build e2e

package saramagroup_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup"
	"github.com/onceward/onceward/internal/kafkaproxy"
)

// The request by which a coordinator has a transaction's end written is so long on its way
// that it is sent again, and arrives in the middle of the next transaction. Kafka takes the
// marker when both have one epoch: outputs of an open transaction are seen, and are there
// twice when that is aborted.
func TestTransformLateMarker(t *testing.T) {
	// Brokers reach themselves through the proxies, which can delay markers.
	th := newTheatreOf(t, 1, "", map[string]string{"inter.broker.listener.name": "CLIENT"})
	for i := range 3 {
		record := &kgo.Record{Topic: topic, Key: []byte("key"), Value: fmt.Append(nil, i+1)}
		require.NoError(t, th.client.ProduceSync(t.Context(), record).FirstErr())
	}
	for name, tc := range map[string]struct {
		defect      func(saramagroup.TransformConfig) saramagroup.TransformConfig
		early, last []string // what is seen after the late marker, and at the end
	}{
		"ours": {
			func(c saramagroup.TransformConfig) saramagroup.TransformConfig { return c }, numbers(1, 2), numbers(1, 3),
		},
		"one-producer": {saramagroup.TransformConfig.KeepProducer, numbers(1, 3), append(numbers(1, 3), "3")},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, th.cluster.CreateTopic(t.Context(), name, 1, nil))
			seen := func(isolation kgo.IsolationLevel) []string { return readAll(t, th.cluster.Addrs(), name, isolation) }
			start := func(cfg saramagroup.TransformConfig) (stop func()) { return th.copies(t, name, cfg) }
			cfg := saramagroup.TransformConfig{Topics: []string{topic}, Insecure: true, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
			open := tc.defect(cfg)
			open.MaxRecords, open.CommitInterval, open.TransactionTimeout = 2, time.Minute, 10*time.Minute
			late := th.network.Inject(kafkaproxy.Fault{Key: writeTxnMarkers, Action: kafkaproxy.Late, Times: 1})
			stop := start(open)
			require.NoError(t, late.Wait(t.Context(), 1))
			require.Eventually(t, func() bool { return len(seen(kgo.ReadUncommitted())) == 3 }, patience, 50*time.Millisecond)
			require.Equal(t, numbers(1, 2), seen(kgo.ReadCommitted()))
			require.NoError(t, late.Deliver(t.Context()))
			require.Equal(t, tc.early, seen(kgo.ReadCommitted()))
			stop() // which aborts what is open
			stop = start(cfg)
			th.reads(name, 50*time.Millisecond)
			stop()
			require.Equal(t, tc.last, seen(kgo.ReadCommitted()))
		})
	}
}

// copies runs a Transform in this process that copies the input into the topic name, as a group of
// that name.
func (th *theatre) copies(t *testing.T, name string, cfg saramagroup.TransformConfig) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- saramagroup.Transform(ctx, th.cluster.Addrs(), name, func(_ context.Context, rec consumer.Record) ([]saramagroup.Output, error) {
			return []saramagroup.Output{{Topic: name, Value: rec.Value}}, nil
		}, cfg)
	}()
	return func() { cancel(); require.NoError(t, <-ended) }
}

// A coordinator has sent the end of a commit to some partitions only, and the one after it
// does not know that it was decided. The next member commits what is left (docs/adr/0031).
func TestTransformHalfCommitted(t *testing.T) {
	th := newTheatre(t, 1, "")
	for i := range 3 {
		record := &kgo.Record{Topic: topic, Key: []byte("key"), Value: fmt.Append(nil, i+1)}
		require.NoError(t, th.client.ProduceSync(t.Context(), record).FirstErr())
	}
	partition := th.partitionOf(t)
	modern, err := kgo.NewClient(kgo.SeedBrokers(th.cluster.Addrs()...))
	require.NoError(t, err)
	defer modern.Close()
	ours := func(c saramagroup.TransformConfig) saramagroup.TransformConfig { return c }
	for name, tc := range map[string]struct {
		defect func(saramagroup.TransformConfig) saramagroup.TransformConfig
		half   string // the topic that has the commit; empty is that of the outputs
		seen   []string
	}{
		"outputs":                               {ours, "", numbers(1, 3)},
		"offset":                                {ours, "__consumer_offsets", numbers(1, 3)},
		"defect-outputs-and-not-their-offset":   {saramagroup.TransformConfig.Halves, "", append(numbers(1, 3), numbers(1, 3)...)},
		"defect-the-offset-and-not-its-outputs": {saramagroup.TransformConfig.Halves, "__consumer_offsets", nil},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, th.cluster.CreateTopic(t.Context(), name, 1, nil))
			start := func(cfg saramagroup.TransformConfig) (stop func()) { return th.copies(t, name, cfg) }
			cfg := saramagroup.TransformConfig{Topics: []string{topic}, Insecure: true, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
			dies := cfg
			dies.ClientID, dies.MaxRecords, dies.DrainTimeout = "dies", 3, 100*time.Millisecond
			dies.CommitInterval, dies.TransactionTimeout = time.Minute, 10*time.Minute
			defer th.network.Heal()
			end := th.network.Inject(kafkaproxy.Fault{Key: kafkaproxy.EndTxn, Action: kafkaproxy.Hold, Client: "dies"})
			stop := start(dies)
			require.NoError(t, end.Wait(t.Context(), 1))
			half := tc.half
			if half == "" {
				half = name
			}
			id := fmt.Sprint(name, ":", topic, ":", partition)
			require.NoError(t, th.cluster.CommitHalf(t.Context(), id, half))
			stop()
			stop = start(tc.defect(cfg))
			require.Eventually(t, func() bool {
				request := kmsg.NewPtrDescribeTransactionsRequest()
				request.TransactionalIDs = []string{id}
				answer, err := request.RequestWith(t.Context(), modern)
				if err != nil {
					return false
				}
				state := answer.TransactionStates[0].State
				return state == "Empty" || strings.HasPrefix(state, "Complete")
			}, patience, 20*time.Millisecond, "what was open is ended")
			th.reads(name, 50*time.Millisecond)
			stop()
			require.Equal(t, tc.seen, readAll(t, th.cluster.Addrs(), name, kgo.ReadCommitted()))
		})
	}
}

// A transactional id has 32,767 epochs, an hour of transactions of 100 ms; then Kafka gives
// it a new producer id. Nothing is lost or doubled over it. Long form.
func TestTransformEpochsRunOut(t *testing.T) {
	if os.Getenv("E2E_FULL") != "1" {
		t.Skip("long form: E2E_FULL=1")
	}
	th := newTheatre(t, 1, "")
	for i := range 20 {
		record := &kgo.Record{Topic: topic, Key: []byte("key"), Value: fmt.Append(nil, i+1)}
		require.NoError(t, th.client.ProduceSync(t.Context(), record).FirstErr())
	}
	id := fmt.Sprint("shouting:", topic, ":", th.partitionOf(t))
	request := kmsg.NewPtrInitProducerIDRequest()
	request.TransactionalID, request.TransactionTimeoutMillis = &id, 60_000
	first := int64(-1)
	for epoch := int16(0); epoch < math.MaxInt16-8; {
		answer, err := request.RequestWith(t.Context(), th.client)
		require.NoError(t, err)
		require.NoError(t, kerr.ErrorForCode(answer.ErrorCode))
		first, epoch = answer.ProducerID, answer.ProducerEpoch
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- saramagroup.Transform(ctx, th.cluster.Addrs(), "shouting", shout, saramagroup.TransformConfig{
			Topics: []string{topic}, Insecure: true, MaxRecords: 1, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
	}()
	th.reads("shouting", 50*time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
	require.Equal(t, numbers(1, 20), readAll(t, th.cluster.Addrs(), upper, kgo.ReadCommitted()))
	answer, err := request.RequestWith(t.Context(), th.client)
	require.NoError(t, err)
	require.NotEqual(t, first, answer.ProducerID, "it ran out")
}
