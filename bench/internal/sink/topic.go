package sink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Topic is what a side writes, a topic or as many as its shape has, as one reads it who looks only at
// what is committed. Its methods are called by one goroutine at a time.
type Topic struct {
	Name    string // of the topic, or what the names of all begin with
	Shape   Shape
	brokers []string
	client  *kgo.Client
	at      offsets // what Read begins with
	check   *Check
}

// offsets are those of all partitions, by topic.
type offsets map[string]map[int32]int64

// Create makes a topic whose records carry the broker's time, when it appended them.
func Create(ctx context.Context, brokers []string, name string, shape Shape) (*Topic, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return nil, fmt.Errorf("connect to Kafka: %w", err)
	}
	t := &Topic{Name: name, Shape: shape, brokers: brokers, client: client, at: make(offsets), check: NewCheck(shape)}
	if err := t.create(ctx); err != nil {
		client.Close()
		return nil, fmt.Errorf("create topic %s: %w", name, err)
	}
	for _, topic := range shape.names(name) {
		t.at[topic] = make(map[int32]int64, shape.Partitions)
		for p := range int32(shape.Partitions) {
			t.at[topic][p] = 0
		}
	}
	return t, nil
}

func (t *Topic) create(ctx context.Context) error {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = 60_000
	for _, name := range t.Shape.names(t.Name) {
		topic := kmsg.NewCreateTopicsRequestTopic()
		topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, int32(t.Shape.Partitions), 1
		stamped := kmsg.NewCreateTopicsRequestTopicConfig()
		stamped.Name, stamped.Value = "message.timestamp.type", new("LogAppendTime")
		topic.Configs = append(topic.Configs, stamped)
		req.Topics = append(req.Topics, topic)
	}
	resp, err := req.RequestWith(ctx, t.client)
	if err != nil {
		return err
	}
	for _, topic := range resp.Topics {
		err = errors.Join(err, kerr.ErrorForCode(topic.ErrorCode))
	}
	return err
}

// Route is what a relay's route has for its topic.
func (t *Topic) Route() string {
	if t.Shape.Topics == 0 {
		return t.Name
	}
	return t.Name + ".{aggregate_type}"
}

// Remove deletes what was written, and ends the connection.
func (t *Topic) Remove(ctx context.Context) error {
	defer t.client.Close()
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TimeoutMillis = 60_000
	for _, name := range t.Shape.names(t.Name) {
		topic := kmsg.NewDeleteTopicsRequestTopic()
		topic.Topic = &name
		req.Topics, req.TopicNames = append(req.Topics, topic), append(req.TopicNames, name)
	}
	resp, err := req.RequestWith(ctx, t.client)
	if err != nil {
		return fmt.Errorf("delete topic %s: %w", t.Name, err)
	}
	for _, topic := range resp.Topics {
		if err := kerr.ErrorForCode(topic.ErrorCode); err != nil {
			return fmt.Errorf("delete topic %s: %w", t.Name, err)
		}
	}
	return nil
}

// Written is how many records are committed; markers of transactions count, too.
func (t *Topic) Written(ctx context.Context) (sum int64, err error) {
	ends, err := t.ends(ctx)
	for _, partitions := range ends {
		for _, end := range partitions {
			sum += end
		}
	}
	return sum, err
}

// ends returns the end of what is committed of each partition.
func (t *Topic) ends(ctx context.Context) (offsets, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.IsolationLevel = 1
	for topic, partitions := range t.at {
		asked := kmsg.NewListOffsetsRequestTopic()
		asked.Topic = topic
		for p := range partitions {
			partition := kmsg.NewListOffsetsRequestTopicPartition()
			partition.Partition, partition.Timestamp = p, -1
			asked.Partitions = append(asked.Partitions, partition)
		}
		req.Topics = append(req.Topics, asked)
	}
	resp, err := req.RequestWith(ctx, t.client)
	if err != nil {
		return nil, fmt.Errorf("read the ends of topic %s: %w", t.Name, err)
	}
	ends := make(offsets, len(t.at))
	for _, topic := range resp.Topics {
		ends[topic.Topic] = make(map[int32]int64, len(topic.Partitions))
		for _, p := range topic.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return nil, fmt.Errorf("read the end of topic %s, partition %d: %w", topic.Topic, p.Partition, err)
			}
			ends[topic.Topic][p.Partition] = p.Offset
		}
	}
	return ends, nil
}

// Reading is what a topic got since the reading before.
type Reading struct {
	Records     int
	Batches     int // of records; markers of transactions are none
	First, Last time.Time
	appended    []int64 // in milliseconds, of each record
}

// Warm is the part of it behind the first third: how many records, and from when on.
func (r Reading) Warm() (records int, from time.Time) {
	if r.Records < 3 {
		return r.Records, r.First
	}
	at := r.Records / 3
	slices.Sort(r.appended)
	return r.Records - at, time.UnixMilli(r.appended[at])
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
	ends, err := t.ends(ctx)
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
func (t *Topic) before(ends offsets) bool {
	for topic, partitions := range ends {
		for p, end := range partitions {
			if t.at[topic][p] < end {
				return true
			}
		}
	}
	return false
}

func (t *Topic) take(fetches kgo.Fetches, ends offsets, read *Reading) {
	for r := range fetches.RecordsAll() {
		if r.Offset >= ends[r.Topic][r.Partition] {
			continue
		}
		t.at[r.Topic][r.Partition] = r.Offset + 1
		if r.Attrs.IsControl() {
			read.Batches-- // a marker is a batch of its own
			continue
		}
		t.check.Record(r.Partition, r.Key, r.Value)
		read.Records++
		read.appended = append(read.appended, r.Timestamp.UnixMilli())
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
	from := make(map[string]map[int32]kgo.Offset, len(t.at))
	for topic, partitions := range t.at {
		from[topic] = make(map[int32]kgo.Offset, len(partitions))
		for p, at := range partitions {
			from[topic][p] = kgo.NewOffset().At(at)
		}
	}
	options := append([]kgo.Opt{
		kgo.SeedBrokers(t.brokers...),
		kgo.ConsumePartitions(from),
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
