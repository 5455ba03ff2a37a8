package saramagroup_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup"
)

const (
	upper    = "upper" // the topic of outputs
	patience = time.Minute
)

// plant is a cluster in memory with an input and an output topic, in real time.
type plant struct {
	*kfake.Cluster
	t      *testing.T
	client *kgo.Client
}

func newPlant(t *testing.T, partitions int32) *plant {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(partitions, topic, upper),
		kfake.BrokerConfigs(map[string]string{"group.min.session.timeout.ms": "1000"}))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return &plant{Cluster: c, t: t, client: client}
}

// produce writes the numbers first to last to a partition of the input.
func (p *plant) produce(partition int32, first, last int) {
	p.t.Helper()
	for i := first; i <= last; i++ {
		require.NoError(p.t, p.client.ProduceSync(p.t.Context(), &kgo.Record{
			Topic: topic, Partition: partition, Key: fmt.Append(nil, "key-", partition), Value: fmt.Append(nil, i),
		}).FirstErr())
	}
}

func (p *plant) config() saramagroup.TransformConfig {
	return saramagroup.TransformConfig{
		Topics: []string{topic}, Insecure: true, CommitInterval: 20 * time.Millisecond, SessionTimeout: 2 * time.Second,
		RetryMin: 10 * time.Millisecond, RetryMax: 100 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(p.t.Output(), nil)),
	}
}

// start runs a Transform. stop ends it, and returns what it returned.
func (p *plant) start(fn saramagroup.TransformFunc, cfg saramagroup.TransformConfig) (stop func() error, ended <-chan error) {
	ctx, cancel := context.WithCancel(p.t.Context())
	done := make(chan error, 1)
	go func() {
		done <- saramagroup.Transform(ctx, p.ListenAddrs(), "shouting", fn, cfg)
		close(done)
	}()
	var once sync.Once
	var err error
	stop = func() error {
		once.Do(func() { cancel(); err = <-done })
		return err
	}
	p.t.Cleanup(func() { _ = stop() })
	return stop, done
}

// shout copies a record to the output.
func shout(_ context.Context, rec consumer.Record) ([]saramagroup.Output, error) {
	return []saramagroup.Output{{Topic: upper, Key: rec.Key, Value: rec.Value, Headers: rec.Headers}}, nil
}

// seen returns the values that a reader of committed messages sees in the output, in the
// order of each partition, and where an open transaction holds it up.
func (p *plant) seen(isolation kgo.IsolationLevel) []string {
	p.t.Helper()
	return readAll(p.t, p.ListenAddrs(), upper, isolation)
}

// readAll reads a topic to its end, or to where the isolation ends it.
func readAll(t *testing.T, brokers []string, name string, isolation kgo.IsolationLevel) (values []string) {
	t.Helper()
	all := readByPartition(t, brokers, name, isolation)
	for _, partition := range slices.Sorted(maps.Keys(all)) {
		values = append(values, all[partition]...)
	}
	return values
}

// readByPartition is readAll for each partition.
func readByPartition(t *testing.T, brokers []string, name string, isolation kgo.IsolationLevel) map[int32][]string {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(name), kgo.FetchIsolationLevel(isolation),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.KeepControlRecords(), kgo.MaxVersions(kversion.V2_8_0()))
	require.NoError(t, err)
	defer client.Close()
	left := endsOf(t, client, name, isolation == kgo.ReadCommitted())
	maps.DeleteFunc(left, func(_ int32, end int64) bool { return end == 0 })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	values := make(map[int32][]string)
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		require.NoError(t, ctx.Err(), "%v left of %s", left, name)
		fetches.EachRecord(func(r *kgo.Record) {
			if end, ok := left[r.Partition]; ok && r.Offset < end && !r.Attrs.IsControl() {
				values[r.Partition] = append(values[r.Partition], string(r.Value))
			}
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		})
	}
	return values
}

// endsOf returns the ends of a topic's partitions; stable: where the first open transaction
// begins. It waits for leaders that are on the move.
func endsOf(t *testing.T, client *kgo.Client, name string, stable bool) (ends map[int32]int64) {
	t.Helper()
	require.Eventually(t, func() bool {
		var err error
		ends, err = askEnds(t.Context(), client, name, stable)
		return err == nil
	}, patience, 20*time.Millisecond, "the ends of %s are not told", name)
	return ends
}

func askEnds(ctx context.Context, client *kgo.Client, name string, stable bool) (map[int32]int64, error) {
	about := kmsg.NewPtrMetadataRequest()
	of := kmsg.NewMetadataRequestTopic()
	of.Topic = &name
	about.Topics = append(about.Topics, of)
	topics, err := about.RequestWith(ctx, client)
	if err != nil {
		return nil, err
	}
	if err := kerr.ErrorForCode(topics.Topics[0].ErrorCode); err != nil {
		return nil, err
	}
	ask := kmsg.NewPtrListOffsetsRequest()
	if stable {
		ask.IsolationLevel = 1
	}
	asked := kmsg.NewListOffsetsRequestTopic()
	asked.Topic = name
	for _, p := range topics.Topics[0].Partitions {
		partition := kmsg.NewListOffsetsRequestTopicPartition()
		partition.Partition, partition.Timestamp = p.Partition, -1
		asked.Partitions = append(asked.Partitions, partition)
	}
	ask.Topics = append(ask.Topics, asked)
	answer, err := ask.RequestWith(ctx, client)
	if err != nil {
		return nil, err
	}
	ends := make(map[int32]int64)
	for _, p := range answer.Topics[0].Partitions {
		if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
			return nil, err
		}
		ends[p.Partition] = p.Offset
	}
	return ends, nil
}

func numbers(first, last int) []string {
	var all []string
	for i := first; i <= last; i++ {
		all = append(all, strconv.Itoa(i))
	}
	return all
}

// reaches waits until the group's committed offset of a partition is at least this.
func (p *plant) reaches(partition int32, offset int64) {
	p.t.Helper()
	require.Eventually(p.t, func() bool { return p.offset(partition) >= offset }, patience, 10*time.Millisecond)
}

func (p *plant) offset(partition int32) int64 {
	if info := p.GroupInfo("shouting"); info != nil {
		if commit, ok := info.Commits[topic][partition]; ok {
			return commit.Offset
		}
	}
	return -1
}
