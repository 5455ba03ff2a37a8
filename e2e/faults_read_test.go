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
	a.scanAt(a.topic(), level, a.endOffsets(kgo.ReadUncommitted()), func(m *sarama.ConsumerMessage) {
		byPartition[m.Partition] = append(byPartition[m.Partition], m)
	})
	return slices.Concat(byPartition...)
}

// count is the number of records that a reader of this level can see now, while
// things go on.
func (a *arena) count(level kgo.IsolationLevel) (n int) {
	a.t.Helper()
	a.scanAt(a.topic(), level, a.endOffsets(level), func(*sarama.ConsumerMessage) { n++ })
	return n
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
