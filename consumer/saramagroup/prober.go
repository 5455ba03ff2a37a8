package saramagroup

import (
	"encoding/binary"
	"errors"

	"github.com/IBM/sarama"
)

// prober reads single batches of partitions, and finds the range of one that
// sarama cannot unpack: its header, which is never packed, says it (Kafka
// protocol, RecordBatch).
type prober struct {
	client sarama.Client
	tap    *tap
	bytes  int32 // how far the group's own fetches reach
}

// newProber connects to the brokers that the client knows.
func newProber(cfg Config, known sarama.Client) (*prober, error) {
	s, err := cfg.SaramaConfig()
	if err != nil {
		return nil, err
	}
	s.Metadata.RefreshFrequency = 0 // nothing is asked but what the prober asks
	var addrs []string
	for _, b := range known.Brokers() {
		addrs = append(addrs, b.Addr())
	}
	t := tapInto(s)
	client, err := sarama.NewClient(addrs, s)
	if err != nil {
		return nil, err
	}
	return &prober{client: client, tap: t, bytes: s.Consumer.Fetch.Default}, nil
}

func (p *prober) close() { _ = p.client.Close() }

// look reads a partition alone from an offset on, as far as a fetch of the
// group's may reach. It returns nil when all of that can be read.
func (p *prober) look(at place, from int64) (*stretch, error) {
	_, err := fetch(p.client, at, from, p.bytes)
	if !errors.Is(err, sarama.ErrDecompressedBatchTooLarge) {
		return nil, err
	}
	var found *stretch
	next, reach := from, int32(0)
	for reach <= p.bytes {
		_, err := fetch(p.client, at, next, 1)
		b, seen := firstBatch(p.tap.answer())
		switch {
		case errors.Is(err, sarama.ErrDecompressedBatchTooLarge) && seen:
			if found == nil {
				found = &stretch{}
			}
			b.first = max(b.first, next)
			found.unreadable, found.next = append(found.unreadable, b), b.last+1
			reach = 0
		case err != nil:
			return nil, err
		case !seen: // the end
			return found, nil
		default:
			reach += b.size
		}
		next = b.last + 1
	}
	return found, nil
}

// readable returns the messages of an answer from an offset on that a reader of
// committed messages gets, and the offset behind it.
func readable(block *sarama.FetchResponseBlock, at place, from int64) (messages []*sarama.ConsumerMessage, next int64) {
	next = visible(block, from, func(batch *sarama.RecordBatch) bool {
		for _, r := range batch.Records {
			if offset := batch.FirstOffset + r.OffsetDelta; offset >= from {
				messages = append(messages, &sarama.ConsumerMessage{
					Topic: at.topic, Partition: at.partition, Offset: offset, Key: r.Key, Value: r.Value,
					Headers:   r.Headers,
					Timestamp: batch.FirstTimestamp.Add(r.TimestampDelta),
				})
			}
		}
		return true
	})
	return messages, next
}

// batch is what the header of one says.
type batch struct {
	first, last int64 // offsets
	size        int32 // in Kafka, of bytes
	codec       sarama.CompressionCodec
	aborted     bool // it belongs to a transaction that was aborted
}

// firstBatch reads the header of the first batch in the answer to a fetch of
// one partition, as it came from the network, in lookVersion. ok is false when
// there is none, or one of the format from before Kafka 0.11. It is pure.
func firstBatch(answer []byte) (b batch, ok bool) {
	c := cursor{answer, true}
	c.skip(4 + 4 + 4 + 2 + 4 + 4) // size, correlation, throttle, error, session, topics
	c.skip(int(c.number(2)))
	c.skip(4 + 4 + 2 + 8 + 8 + 8) // partitions, partition, error, high water, stable, start
	aborted := make(map[int64]int64)
	for n := c.number(4); n > 0 && c.ok; n-- {
		id, since := c.number(8), c.number(8)
		if first, more := aborted[id]; !more || since < first { // of several, the first reaches furthest back
			aborted[id] = since
		}
	}
	c.skip(4 + 4) // preferred replica, bytes of batches
	b.first, b.size = c.number(8), int32(c.number(4))+12
	c.skip(4)
	magic := c.number(1)
	c.skip(4)
	attributes := c.number(2)
	b.last, b.codec = b.first+c.number(4), sarama.CompressionCodec(attributes&7)
	c.skip(8 + 8)
	since, transaction := aborted[c.number(8)]
	b.aborted = attributes&16 != 0 && transaction && since <= b.last
	return b, c.ok && magic == 2
}

// cursor reads numbers of Kafka's protocol; ok is false once there are too few
// bytes.
type cursor struct {
	rest []byte
	ok   bool
}

func (c *cursor) skip(n int) {
	if c.ok = c.ok && n >= 0 && n <= len(c.rest); c.ok {
		c.rest = c.rest[n:]
	}
}

func (c *cursor) number(size int) int64 {
	from := c.rest
	if c.skip(size); !c.ok {
		return 0
	}
	var b [8]byte
	copy(b[8-size:], from[:size])
	n := int64(binary.BigEndian.Uint64(b[:]))
	return n << (64 - 8*size) >> (64 - 8*size)
}
