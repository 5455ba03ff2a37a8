package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/record"
)

const (
	// fetchBytes bounds one answer; a larger batch comes alone, whole.
	fetchBytes = 4 << 20
	fetchWait  = 500 * time.Millisecond
	// emptyAnswers in a row before the end mean that the broker does not give
	// what it announced.
	emptyAnswers = 20
)

// Search says which records are copies of an event and where they can be.
type Search struct {
	Brokers   []string
	Secure    func(*sarama.Config) error // TLS and SASL; nil: none
	Topic     string
	Key       string    // the idempotency key to match
	RecordKey []byte    // decides the partition that is read first; nil: none
	From      time.Time // records stamped before are not read
}

// Copy is one record that carries the key.
type Copy struct {
	Partition int32     `json:"partition"`
	Offset    int64     `json:"offset"`
	Timestamp time.Time `json:"timestamp"`
	ReplayID  string    `json:"replay_id,omitempty"`
	RepairID  string    `json:"repair_id,omitempty"`
}

// Copies is the copies of an event, and where they were looked for.
type Copies struct {
	Topic      string    `json:"topic"`
	Partitions []int32   `json:"partitions_searched"`
	From       time.Time `json:"from"`
	Copies     []Copy    `json:"copies"`
	NoTopic    bool      `json:"no_such_topic,omitempty"`
}

// Nowhere says where there is none.
func (r *Copies) Nowhere() string {
	if r.NoTopic {
		return "there is no topic " + r.Topic
	}
	return fmt.Sprintf("not in topic %s, partitions %v, from %s to the end", r.Topic, r.Partitions, terminal.Stamp(&r.From))
}

// FindCopies reads the partitions from the time on to their present end, as a
// read_committed consumer sees them, and returns every copy; a topic that does not
// exist has none. It blocks until then; ctx is looked at between requests.
func FindCopies(ctx context.Context, s Search) (*Copies, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cfg, err := clientConfig(ctx, s.Secure)
	if err != nil {
		return nil, err
	}
	client, err := sarama.NewClient(s.Brokers, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to Kafka at %v: %w", s.Brokers, err)
	}
	defer client.Close() //nolint:errcheck // only reads were made
	report := &Copies{Topic: s.Topic, Partitions: []int32{}, From: s.From, Copies: []Copy{}}
	count, err := client.Partitions(s.Topic)
	if report.NoTopic = errors.Is(err, sarama.ErrUnknownTopicOrPartition); report.NoTopic {
		return report, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up topic %s at %v: %w", s.Topic, s.Brokers, err)
	}
	if s.RecordKey != nil {
		home := publisher.Partition(s.RecordKey, int32(len(count)))
		if err := report.scan(ctx, client, s, home); err != nil || len(report.Copies) > 0 {
			return report, err
		}
		// It is in another one, if it is there: the topic may have grown since.
		count = slices.DeleteFunc(slices.Clone(count), func(p int32) bool { return p == home })
	}
	return report, report.scan(ctx, client, s, count...)
}

// scan adds the copies in some partitions.
func (r *Copies) scan(ctx context.Context, client sarama.Client, s Search, partitions ...int32) error {
	for _, p := range partitions {
		copies, err := scanPartition(ctx, client, s, p)
		if err != nil {
			return fmt.Errorf("read topic %s partition %d: %w", s.Topic, p, err)
		}
		r.Partitions, r.Copies = append(r.Partitions, p), append(r.Copies, copies...)
	}
	return nil
}

// scanPartition reads with single requests and not with sarama's consumer,
// which hides markers of transactions: it would wait for ever for an end that
// is one.
func scanPartition(ctx context.Context, client sarama.Client, s Search, partition int32) ([]Copy, error) {
	offset, err := client.GetOffset(s.Topic, partition, s.From.UnixMilli())
	if err != nil || offset < 0 { // -1: nothing is that young
		return nil, err
	}
	leader, err := client.Leader(s.Topic, partition)
	if err != nil {
		return nil, err
	}
	var found []Copy
	end, empty := int64(-1), 0
	for end < 0 || offset < end {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		block, err := fetch(leader, s.Topic, partition, offset)
		if err != nil {
			return nil, err
		}
		if end < 0 { // what comes later is another question's answer
			end = block.LastStableOffset
		}
		next := offset
		for _, batch := range committed(block) {
			next = max(next, batch.LastOffset()+1)
			found = append(found, matches(batch, offset, partition, s.Key)...)
		}
		if empty++; next > offset {
			empty = 0
		}
		if empty == emptyAnswers {
			return nil, fmt.Errorf("the broker gives nothing at offset %d, below the end at %d", offset, end)
		}
		offset = next
	}
	return found, nil
}

func fetch(leader *sarama.Broker, topic string, partition int32, offset int64) (*sarama.FetchResponseBlock, error) {
	request := &sarama.FetchRequest{
		Version: 11, MinBytes: 1, MaxBytes: fetchBytes, MaxWaitTime: int32(fetchWait.Milliseconds()),
		Isolation: sarama.ReadCommitted, SessionEpoch: -1, // no fetch session
	}
	request.AddBlock(topic, partition, offset, fetchBytes, -1)
	response, err := leader.Fetch(request)
	if err != nil {
		return nil, err
	}
	block := response.GetBlock(topic, partition)
	if block == nil {
		return nil, errors.New("the broker's answer lacks the partition")
	}
	if block.Err != sarama.ErrNoError {
		return nil, block.Err
	}
	return block, nil
}

// committed returns the whole batches of an answer; those of aborted
// transactions and the markers have their records taken out.
func committed(block *sarama.FetchResponseBlock) []*sarama.RecordBatch {
	aborted := slices.Clone(block.AbortedTransactions)
	slices.SortFunc(aborted, func(a, b *sarama.AbortedTransaction) int { return int(a.FirstOffset - b.FirstOffset) })
	open := make(map[int64]bool) // producers inside an aborted transaction
	var out []*sarama.RecordBatch
	for _, records := range block.RecordsSet {
		batch := records.RecordBatch
		if batch == nil || batch.PartialTrailingRecord {
			continue
		}
		for len(aborted) > 0 && aborted[0].FirstOffset <= batch.LastOffset() {
			open[aborted[0].ProducerID] = true
			aborted = aborted[1:]
		}
		switch {
		case batch.Control:
			if isAbort(batch) {
				delete(open, batch.ProducerID)
			}
			batch.Records = nil
		case batch.IsTransactional && open[batch.ProducerID]:
			batch.Records = nil
		}
		out = append(out, batch)
	}
	return out
}

// isAbort reads the marker's key: version and type, 16 bits each; type 0 ends
// a transaction by abort (Kafka protocol, control batches).
func isAbort(batch *sarama.RecordBatch) bool {
	return len(batch.Records) == 1 && len(batch.Records[0].Key) >= 4 &&
		batch.Records[0].Key[2] == 0 && batch.Records[0].Key[3] == 0
}

// matches returns the records from the offset on that carry the key. A batch
// can begin before the offset that was asked for.
func matches(batch *sarama.RecordBatch, from int64, partition int32, key string) []Copy {
	var out []Copy
	for _, rec := range batch.Records {
		offset := batch.FirstOffset + rec.OffsetDelta
		if offset < from || header(rec, outbox.HeaderKey) != key {
			continue
		}
		at := batch.FirstTimestamp.Add(rec.TimestampDelta)
		if batch.LogAppendTime {
			at = batch.MaxTimestamp
		}
		out = append(out, Copy{
			Partition: partition, Offset: offset, Timestamp: at.UTC(),
			ReplayID: header(rec, record.HeaderReplayID), RepairID: header(rec, record.HeaderRepairID),
		})
	}
	return out
}

func header(rec *sarama.Record, name string) string {
	for _, h := range rec.Headers {
		if string(h.Key) == name {
			return string(h.Value)
		}
	}
	return ""
}
