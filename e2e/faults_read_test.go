//go:build e2e

package e2e

import (
	"context"
	"slices"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// read reads the topic from its beginning to its present end, each partition in
// order. Unlike records it knows of transactions: the end may be a control
// record, which consumers never see. No transaction may be open.
func (a *arena) read(level kgo.IsolationLevel) []*sarama.ConsumerMessage {
	a.t.Helper()
	byPartition := make([][]*sarama.ConsumerMessage, a.partitions)
	a.scan(level, a.endOffsets(kgo.ReadUncommitted()), func(m *sarama.ConsumerMessage) {
		byPartition[m.Partition] = append(byPartition[m.Partition], m)
	})
	return slices.Concat(byPartition...)
}

// count is the number of records that a reader of this level can see now, while
// things go on.
func (a *arena) count(level kgo.IsolationLevel) (n int) {
	a.t.Helper()
	a.scan(level, a.endOffsets(level), func(*sarama.ConsumerMessage) { n++ })
	return n
}

// scan reads each partition in order from its beginning to its end and keeps
// nothing.
func (a *arena) scan(level kgo.IsolationLevel, left map[int32]int64, record func(*sarama.ConsumerMessage)) {
	a.t.Helper()
	offsets := map[int32]kgo.Offset{}
	for p := range left {
		offsets[p] = kgo.NewOffset().AtStart()
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(a.brokers...), kgo.FetchIsolationLevel(level), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{a.topic(): offsets}))
	require.NoError(a.t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(a.t.Context(), 2*time.Minute)
	defer cancel()
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		require.NoError(a.t, ctx.Err(), "partitions whose end cannot be read, and their ends: %v", left)
		fetches.EachRecord(func(r *kgo.Record) {
			end, wanted := left[r.Partition]
			if wanted && !r.Attrs.IsControl() && r.Offset < end {
				record(message(r))
			}
			if r.Offset >= end-1 {
				delete(left, r.Partition)
			}
		})
	}
}

// endOffsets returns the ends of the partitions that are not empty, as a reader
// of this level sees them: for read_committed, where the first open transaction
// begins.
func (a *arena) endOffsets(level kgo.IsolationLevel) map[int32]int64 {
	a.t.Helper()
	client := a.ground.behind(a.t)
	defer client.Close()
	request := kmsg.NewPtrListOffsetsRequest()
	if level == kgo.ReadCommitted() {
		request.IsolationLevel = 1
	}
	topic := kmsg.NewListOffsetsRequestTopic()
	topic.Topic = a.topic()
	for p := range a.partitions {
		partition := kmsg.NewListOffsetsRequestTopicPartition()
		partition.Partition, partition.Timestamp = p, -1 // the end
		topic.Partitions = append(topic.Partitions, partition)
	}
	request.Topics = append(request.Topics, topic)
	ctx, cancel := context.WithTimeout(a.t.Context(), 30*time.Second)
	defer cancel()
	ends := map[int32]int64{}
	for _, shard := range client.RequestSharded(ctx, request) {
		require.NoError(a.t, shard.Err)
		for _, p := range shard.Resp.(*kmsg.ListOffsetsResponse).Topics[0].Partitions {
			require.Zero(a.t, p.ErrorCode)
			if p.Offset > 0 {
				ends[p.Partition] = p.Offset
			}
		}
	}
	return ends
}

// message is the record in the form that verify knows.
func message(r *kgo.Record) *sarama.ConsumerMessage {
	m := &sarama.ConsumerMessage{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Key: r.Key, Value: r.Value, Timestamp: r.Timestamp}
	for _, h := range r.Headers {
		m.Headers = append(m.Headers, &sarama.RecordHeader{Key: []byte(h.Key), Value: h.Value})
	}
	return m
}
