package sink

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Partitions of every topic.
const Partitions = 12

// Topic is a topic of the benchmark, as one reads it who looks only at what is committed. Its
// methods are called by one goroutine at a time.
type Topic struct {
	Name    string
	brokers []string
	client  *kgo.Client
	at      map[int32]int64 // what Read begins with
	check   *Check
}

// Create makes a topic whose records carry the broker's time, when it appended them.
func Create(ctx context.Context, brokers []string, name string) (*Topic, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return nil, fmt.Errorf("connect to Kafka: %w", err)
	}
	t := &Topic{Name: name, brokers: brokers, client: client, at: make(map[int32]int64), check: NewCheck()}
	if err := t.create(ctx); err != nil {
		client.Close()
		return nil, fmt.Errorf("create topic %s: %w", name, err)
	}
	for p := range int32(Partitions) {
		t.at[p] = 0
	}
	return t, nil
}

func (t *Topic) create(ctx context.Context) error {
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = t.Name, Partitions, 1
	stamped := kmsg.NewCreateTopicsRequestTopicConfig()
	stamped.Name, stamped.Value = "message.timestamp.type", new("LogAppendTime")
	topic.Configs = append(topic.Configs, stamped)
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Topics, req.TimeoutMillis = append(req.Topics, topic), 30_000
	resp, err := req.RequestWith(ctx, t.client)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.Topics[0].ErrorCode)
}

// Close ends the connection.
func (t *Topic) Close() { t.client.Close() }

// Ends returns the end of what is committed of each partition.
func (t *Topic) Ends(ctx context.Context) (map[int32]int64, error) {
	asked := kmsg.NewListOffsetsRequestTopic()
	asked.Topic = t.Name
	for p := range int32(Partitions) {
		partition := kmsg.NewListOffsetsRequestTopicPartition()
		partition.Partition, partition.Timestamp = p, -1
		asked.Partitions = append(asked.Partitions, partition)
	}
	req := kmsg.NewPtrListOffsetsRequest()
	req.IsolationLevel, req.Topics = 1, append(req.Topics, asked)
	resp, err := req.RequestWith(ctx, t.client)
	if err != nil {
		return nil, fmt.Errorf("read the ends of topic %s: %w", t.Name, err)
	}
	ends := make(map[int32]int64, Partitions)
	for _, topic := range resp.Topics {
		for _, p := range topic.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return nil, fmt.Errorf("read the end of topic %s, partition %d: %w", t.Name, p.Partition, err)
			}
			ends[p.Partition] = p.Offset
		}
	}
	return ends, nil
}

// Reading is what a topic got since the reading before.
type Reading struct {
	Records     int
	Batches     int // of records; markers of transactions are none
	First, Last time.Time
}

// PerBatch is how many records a batch has in the mean; nil: no batch was read.
func (r Reading) PerBatch() *float64 {
	if r.Batches <= 0 {
		return nil
	}
	records := float64(r.Records) / float64(r.Batches)
	return &records
}

// silence is how long a read waits for the next record before the end.
const silence = time.Minute

// Read reads from where the last one ended to the present end of what is committed. below is the
// number of the first event that is not there yet: whatever else the topic holds is an error.
func (t *Topic) Read(ctx context.Context, below int) (Reading, error) {
	ends, err := t.Ends(ctx)
	if err != nil {
		return Reading{}, err
	}
	var read Reading
	var batches batchCounter
	client, err := t.consumer(kgo.KeepControlRecords(), kgo.WithHooks(&batches))
	if err != nil {
		return Reading{}, err
	}
	defer client.Close()
	for t.before(ends) {
		polling, cancel := context.WithTimeout(ctx, silence)
		fetches := client.PollFetches(polling)
		cancel()
		if err := errors.Join(ctx.Err(), fetches.Err()); err != nil {
			return read, fmt.Errorf("read topic %s: %w", t.Name, err)
		}
		t.take(fetches, ends, &read)
	}
	read.Batches += int(batches.Load())
	return read, t.check.Complete(below)
}

// before reports whether something is left to read.
func (t *Topic) before(ends map[int32]int64) bool {
	for p, end := range ends {
		if t.at[p] < end {
			return true
		}
	}
	return false
}

func (t *Topic) take(fetches kgo.Fetches, ends map[int32]int64, read *Reading) {
	for r := range fetches.RecordsAll() {
		if r.Offset >= ends[r.Partition] {
			continue
		}
		t.at[r.Partition] = r.Offset + 1
		if r.Attrs.IsControl() {
			read.Batches-- // a marker is a batch of its own
			continue
		}
		t.check.Record(r.Key, r.Value)
		read.Records++
		if read.First.IsZero() || r.Timestamp.Before(read.First) {
			read.First = r.Timestamp
		}
		if r.Timestamp.After(read.Last) {
			read.Last = r.Timestamp
		}
	}
}

// consumer reads from where the last reading ended.
func (t *Topic) consumer(more ...kgo.Opt) (*kgo.Client, error) {
	from := make(map[int32]kgo.Offset, Partitions)
	for p, at := range t.at {
		from[p] = kgo.NewOffset().At(at)
	}
	options := append([]kgo.Opt{
		kgo.SeedBrokers(t.brokers...),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{t.Name: from}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	}, more...)
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, fmt.Errorf("read topic %s: %w", t.Name, err)
	}
	return client, nil
}

// batchCounter counts the batches that were fetched.
type batchCounter struct{ atomic.Int64 }

// OnFetchBatchRead implements kgo.HookFetchBatchRead.
func (c *batchCounter) OnFetchBatchRead(_ kgo.BrokerMetadata, _ string, _ int32, m kgo.FetchBatchMetrics) {
	if m.NumRecords > 0 {
		c.Add(1)
	}
}
