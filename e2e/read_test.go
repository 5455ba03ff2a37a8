//go:build e2e

package e2e

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// committed reads what read_committed shows of a topic, from its beginning to its
// present end, each partition in order.
func (w *environment) committed(topic string) []*sarama.ConsumerMessage {
	w.t.Helper()
	byPartition := map[int32][]*sarama.ConsumerMessage{}
	w.eachCommitted(topic, func(m *sarama.ConsumerMessage) {
		byPartition[m.Partition] = append(byPartition[m.Partition], m)
	})
	var all []*sarama.ConsumerMessage
	for _, p := range slices.Sorted(maps.Keys(byPartition)) {
		all = append(all, byPartition[p]...)
	}
	return all
}

// eachCommitted reads the same, and keeps nothing. The end may be a control record, which
// sarama's consumers never see.
func (w *environment) eachCommitted(topic string, record func(*sarama.ConsumerMessage)) {
	w.t.Helper()
	client, err := sarama.NewClient(w.brokers, kafkaConfig())
	require.NoError(w.t, err)
	defer client.Close()
	partitions, err := client.Partitions(topic)
	require.NoError(w.t, err)
	left := map[int32]int64{}
	for _, p := range partitions {
		newest := w.offset(client, topic, p, sarama.OffsetNewest)
		if w.offset(client, topic, p, sarama.OffsetOldest) < newest {
			left[p] = newest
		}
	}
	if len(left) > 0 {
		w.scanAt(topic, kgo.ReadCommitted(), left, record)
	}
}

// offset waits until the partition has a leader that knows of it: in a topic that has just been made it may not yet.
func (w *environment) offset(client sarama.Client, topic string, partition int32, at int64) int64 {
	w.t.Helper()
	for {
		offset, err := client.GetOffset(topic, partition, at)
		if errors.Is(err, sarama.ErrNotLeaderForPartition) && w.t.Context().Err() == nil {
			continue
		}
		require.NoError(w.t, err)
		return offset
	}
}

// scanAt reads at an isolation level: each partition in order from its beginning to its end and keeps
// nothing.
func (w *environment) scanAt(topic string, level kgo.IsolationLevel, left map[int32]int64, record func(*sarama.ConsumerMessage)) {
	w.t.Helper()
	offsets := map[int32]kgo.Offset{}
	for p := range left {
		offsets[p] = kgo.NewOffset().AtStart()
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(w.brokers...), kgo.FetchIsolationLevel(level), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: offsets}))
	require.NoError(w.t, err)
	defer client.Close()
	for len(left) > 0 {
		// Longer than the timeout of a transaction that its relay died in, and the broker's
		// look for such: until then nothing behind its beginning is read.
		ctx, cancel := context.WithTimeout(w.t.Context(), 3*time.Minute)
		fetches := client.PollFetches(ctx)
		err := ctx.Err()
		cancel()
		require.NoError(w.t, err, "topic %s: partitions whose end cannot be read, and their ends: %v", topic, left)
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

// message is the record in the form that verify knows.
func message(r *kgo.Record) *sarama.ConsumerMessage {
	m := &sarama.ConsumerMessage{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Key: r.Key, Value: r.Value, Timestamp: r.Timestamp}
	for _, h := range r.Headers {
		m.Headers = append(m.Headers, &sarama.RecordHeader{Key: []byte(h.Key), Value: h.Value})
	}
	return m
}
