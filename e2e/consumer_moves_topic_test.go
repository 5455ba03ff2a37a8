//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward/consumer/saramagroup"
)

// finished waits, with the members at work, until the group has finished the topic
// and nothing of it is lost any more by what happens to the database.
func (m *mover) finished() bool {
	m.doDue(time.Now().Add(time.Hour))
	for end := time.Now().Add(30 * time.Second); m.lags() > 0 || m.undecided() > 0; m.pass(100 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	if m.replicated != nil {
		m.awaitStandby(m.w)
	}
	m.snapshot = ""
	m.rest()
	return true
}

// topicMadeAnew deletes the topic, which is finished, and makes it again.
func (m *mover) topicMadeAnew() bool {
	if !m.finished() {
		return false
	}
	require.NoError(m.t, m.w.admin.DeleteTopic(m.w.topic()))
	eventually(m.t, "the topic is made again", 30*time.Second, func() bool {
		return m.w.admin.CreateTopic(m.w.topic(), &sarama.TopicDetail{NumPartitions: m.w.partitions, ReplicationFactor: 1}, false) == nil
	})
	eventually(m.t, "it has leaders", 30*time.Second, m.writable)
	m.firstRecords()
	return true
}

// firstRecords publishes, in every life of the topic at the same places, what nobody
// can make an event of: a letter of one life is none of the other.
func (m *mover) firstRecords() {
	m.malformedAt(0)
	m.unreadableAt(1, 30)
}

func (m *mover) malformedAt(partition int32) {
	m.malformed++
	m.sendAll(&sarama.ProducerMessage{Topic: m.w.topic(), Partition: partition, Value: sarama.StringEncoder("not an event")})
}

// unreadableBytes are more than a member unpacks.
const unreadableBytes = saramagroup.DefaultMaxUnpacked + 1<<20

// unreadableAt publishes one batch of so many records that no member unpacks.
func (m *mover) unreadableAt(partition int32, records int) {
	client, err := kgo.NewClient(kgo.SeedBrokers(m.w.brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.ZstdCompression()),
		kgo.ProducerBatchMaxBytes(2*unreadableBytes), kgo.ProducerLinger(time.Minute))
	require.NoError(m.t, err)
	defer client.Close()
	batch := make([]*kgo.Record, records)
	for i := range batch {
		batch[i] = &kgo.Record{Topic: m.w.topic(), Partition: partition, Value: make([]byte, unreadableBytes/records+1)}
	}
	m.malformed++
	written := kgo.AbortingFirstErrPromise(client)
	for _, r := range batch {
		client.Produce(m.t.Context(), r, written.Promise())
	}
	require.NoError(m.t, client.Flush(m.t.Context())) // all of it at once
	require.NoError(m.t, written.Err())
}

// unreadableBatch publishes a batch that becomes one letter.
func (m *mover) unreadableBatch() bool {
	m.unreadableAt(int32(m.rng.IntN(int(m.w.partitions))), 1+m.rng.IntN(40))
	return true
}

// writable: the leaders of all partitions answer.
func (m *mover) writable() bool {
	client, err := sarama.NewClient(m.w.brokers, kafkaConfig())
	if err != nil {
		return false
	}
	defer client.Close()
	for p := range m.w.partitions {
		if _, err := client.GetOffset(m.w.topic(), p, sarama.OffsetNewest); err != nil {
			return false // its leader is named, and does not know it yet
		}
	}
	return true
}

// clusterMoved does what a mirror does: the last records of each partition are in a
// topic of the same name elsewhere, at other offsets, and the group's offsets were
// translated and carry the metadata of the old ones, which says another cluster.
func (m *mover) clusterMoved() bool {
	const kept = 50 // of each partition
	if m.second != nil {
		return false // the offsets of one group only are translated here
	}
	m.rest()
	records := m.w.records()
	byPartition := make([][]*sarama.ConsumerMessage, m.w.partitions)
	for _, r := range records {
		byPartition[r.Partition] = append(byPartition[r.Partition], r)
	}
	old := m.committed()
	for p, all := range byPartition {
		block := old.GetBlock(m.w.topic(), int32(p))
		if block.Offset < int64(len(all)-kept) {
			return false // too much of it is not finished
		}
		if slices.ContainsFunc(all[min(block.Offset, int64(len(all))):], unmirrored) {
			return false
		}
	}
	require.NoError(m.t, m.w.admin.DeleteTopic(m.w.topic()))
	eventually(m.t, "the topic is made again", 30*time.Second, func() bool {
		return m.w.admin.CreateTopic(m.w.topic(), &sarama.TopicDetail{NumPartitions: m.w.partitions, ReplicationFactor: 1}, false) == nil
	})
	eventually(m.t, "it has leaders", 30*time.Second, m.writable)
	if m.replicated != nil {
		m.awaitStandby(m.w)
	}
	m.snapshot = ""
	m.mirror(byPartition, kept, old)
	return true
}

// unmirrored: nobody can make an event of it.
func unmirrored(r *sarama.ConsumerMessage) bool { return r.Key == nil && len(r.Headers) == 0 }

// ofAnotherCluster is an offset's metadata as members on another cluster spell it.
func ofAnotherCluster(metadata string) string {
	const format = "onceward:2:"
	of, ours := strings.CutPrefix(metadata, format)
	if !ours {
		return metadata // the offset was set by hand
	}
	return format + "!" + of[1:]
}

// mirror writes the last records and the translated offsets.
func (m *mover) mirror(byPartition [][]*sarama.ConsumerMessage, kept int, old *sarama.OffsetFetchResponse) {
	client, err := sarama.NewClient(m.w.brokers, kafkaConfig())
	require.NoError(m.t, err)
	defer client.Close()
	offsets, err := sarama.NewOffsetManagerFromClient(m.group, client)
	require.NoError(m.t, err)
	for p, all := range byPartition {
		first := max(0, len(all)-kept)
		for _, r := range all[first:] {
			if unmirrored(r) {
				first++
				continue
			}
			to := &sarama.ProducerMessage{Topic: r.Topic, Partition: r.Partition, Key: sarama.ByteEncoder(r.Key), Value: sarama.ByteEncoder(r.Value)}
			for _, h := range r.Headers {
				to.Headers = append(to.Headers, *h)
			}
			m.sendAll(to)
		}
		block := old.GetBlock(m.w.topic(), int32(p))
		partition, err := offsets.ManagePartition(m.w.topic(), int32(p))
		require.NoError(m.t, err)
		partition.MarkOffset(max(0, block.Offset-int64(first)), ofAnotherCluster(block.Metadata))
		require.NoError(m.t, partition.Close())
	}
	require.NoError(m.t, offsets.Close())
}
