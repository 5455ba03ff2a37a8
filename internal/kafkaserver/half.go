package kafkaserver

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// CommitHalf ends the open transaction of a transactional id as a commit in its partitions of
// one topic only, as a coordinator does that is deposed in the middle of it. Only on clusters
// of which no coordinator has moved yet.
func (c *Cluster) CommitHalf(ctx context.Context, id, topic string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(c.Addrs()...))
	if err != nil {
		return fmt.Errorf("connect to Kafka: %w", err)
	}
	defer client.Close()
	describe := kmsg.NewPtrDescribeTransactionsRequest()
	describe.TransactionalIDs = []string{id}
	answer, err := describe.RequestWith(ctx, client)
	if err != nil {
		return fmt.Errorf("describe the transaction of %q: %w", id, err)
	}
	open := answer.TransactionStates[0]
	marker := kmsg.NewWriteTxnMarkersRequestMarker()
	marker.ProducerID, marker.ProducerEpoch, marker.Committed = open.ProducerID, open.ProducerEpoch, true
	for _, t := range open.Topics {
		if t.Topic == topic {
			of := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
			of.Topic, of.Partitions = topic, t.Partitions
			marker.Topics = append(marker.Topics, of)
		}
	}
	if open.State != "Ongoing" || len(marker.Topics) == 0 {
		return fmt.Errorf("the transaction of %q is %s, and has no partition of %s", id, open.State, topic)
	}
	write := kmsg.NewPtrWriteTxnMarkersRequest()
	write.Markers = append(write.Markers, marker)
	written, err := write.RequestWith(ctx, client)
	if err != nil {
		return fmt.Errorf("write the markers of %q: %w", id, err)
	}
	for _, m := range written.Markers {
		for _, t := range m.Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return fmt.Errorf("write the marker of %q in %s/%d: %w", id, t.Topic, p.Partition, err)
				}
			}
		}
	}
	return nil
}
