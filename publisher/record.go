package publisher

import (
	"encoding/hex"
	"fmt"
	"unsafe"

	"github.com/IBM/sarama"
	"github.com/google/uuid"

	"github.com/onceward/onceward/outbox"
)

// Event is a row on its way to Kafka.
type Event struct {
	// Row is what is published. It is read until the event has ended.
	Row *outbox.Row
	// Tag is the caller's ordinal, given back when the event was acknowledged.
	Tag uint64
	// Position is the text of header `position`; no header when empty.
	Position string
}

const (
	// inlineHeaders is how many headers fit into a record without a second
	// allocation: the seven of the contract and three of the user's.
	inlineHeaders = 10
	// batchOverhead is the size of a record batch without its records.
	batchOverhead = 61
	// companions estimates what sarama allocates beside each message until it
	// is acknowledged: its own record, and pointers to the headers.
	companions = 256
)

// record is one event between Publish and its acknowledgement, in a single
// allocation. The encoders are pointer types into it, because a byte slice put
// into an interface is an allocation of its own.
type record struct {
	message sarama.ProducerMessage
	tag     uint64
	topic   *topic
	cost    int64 // bytes of memory it accounts for while in flight
	key     []byte
	value   []byte
	headers [inlineHeaders]sarama.RecordHeader
}

// recordOf returns the record of a message that came back. There are no other
// messages: Publish makes them all.
func recordOf(message *sarama.ProducerMessage) *record {
	r, _ := message.Metadata.(*record)
	return r
}

// keyOf and valueOf implement sarama.Encoder over a record's own slices.
type (
	keyOf   record
	valueOf record
)

func (k *keyOf) Encode() ([]byte, error)   { return k.key, nil }
func (k *keyOf) Length() int               { return len(k.key) }
func (v *valueOf) Encode() ([]byte, error) { return v.value, nil }
func (v *valueOf) Length() int             { return len(v.value) }

// Names of the contract's headers as sarama wants them.
var (
	nameKey           = []byte(outbox.HeaderKey)
	nameEventType     = []byte(outbox.HeaderEventType)
	nameAggregateType = []byte(outbox.HeaderAggregateType)
	nameContentType   = []byte(outbox.HeaderContentType)
	nameOccurredAt    = []byte(outbox.HeaderOccurredAt)
	nameTraceparent   = []byte(outbox.HeaderTraceparent)
	namePosition      = []byte(outbox.HeaderPosition)
)

// newRecord builds the record of an event without topic and partition. It is
// pure: the same event gives the same bytes. The timestamp stays unset, which
// makes sarama stamp the time of publishing: Kafka deletes at once what is
// stamped older than the retention, as the event time of a replay may be.
func newRecord(ev Event) (*record, error) {
	row := ev.Row
	if err := checkRow(row); err != nil {
		return nil, err
	}
	r := &record{tag: ev.Tag, key: row.AggregateID, value: row.Payload}
	if r.key == nil {
		r.key = []byte{} // the empty key is a key; nil would have no order
	}
	r.message.Metadata = r
	r.message.Key = (*keyOf)(r)
	if r.value != nil {
		r.message.Value = (*valueOf)(r) // else a tombstone: the interface itself must be nil
	}
	headers := r.contractHeaders(row, ev.Position)
	if row.Headers != nil {
		var err error
		if headers, err = appendUserHeaders(headers, row.Headers); err != nil {
			return nil, err
		}
	}
	r.message.Headers = headers
	r.cost = int64(r.message.ByteSize(2)) + int64(unsafe.Sizeof(*r)) + companions
	return r, nil
}

// contractHeaders writes the headers of the contract in its order. Their texts
// share one buffer.
func (r *record) contractHeaders(row *outbox.Row, position string) []sarama.RecordHeader {
	const keyTail, occurredAt = 1 + 36, len(outbox.OccurredAtLayout)
	text := make([]byte, 0, len(row.Namespace)+keyTail+len(row.Type)+len(row.AggregateType)+len(row.ContentType)+occurredAt+len(position))
	headers := r.headers[:0]
	start := 0
	cut := func(name []byte) {
		headers = append(headers, sarama.RecordHeader{Key: name, Value: text[start:len(text):len(text)]})
		start = len(text)
	}
	text = appendKey(text, row.Namespace, row.ID)
	cut(nameKey)
	text = append(text, row.Type...)
	cut(nameEventType)
	text = append(text, row.AggregateType...)
	cut(nameAggregateType)
	text = append(text, row.ContentType...)
	cut(nameContentType)
	text = row.CreatedAt.UTC().AppendFormat(text, outbox.OccurredAtLayout)
	cut(nameOccurredAt)
	if row.Traceparent != nil {
		headers = append(headers, sarama.RecordHeader{Key: nameTraceparent, Value: row.Traceparent})
	}
	if position != "" {
		text = append(text, position...)
		cut(namePosition)
	}
	return headers
}

// appendKey appends the text form of an idempotency key.
func appendKey(text []byte, namespace string, id uuid.UUID) []byte {
	text = append(append(text, namespace...), ':')
	text = hex.AppendEncode(text, id[0:4])
	for _, group := range [...][2]int{{4, 6}, {6, 8}, {8, 10}, {10, 16}} {
		text = append(text, '-')
		text = hex.AppendEncode(text, id[group[0]:group[1]])
	}
	return text
}

// checkRow refuses what no consumer could use: an id that is no key, as a
// writer that does not use Enqueue may have made it, and a time that the
// header's layout cannot hold.
func checkRow(row *outbox.Row) error {
	if version := row.ID[6] >> 4; version != 7 && version != 8 || row.ID[8]>>6 != 0b10 {
		return &RecordError{Field: "id", Detail: fmt.Sprintf("%s is no UUID of version 7 or 8; see the contract's idempotency key", row.ID)}
	}
	if year := row.CreatedAt.UTC().Year(); year < 0 || year > 9999 {
		return &RecordError{Field: "created_at", Detail: fmt.Sprintf("year %d has no RFC 3339 form", year)}
	}
	return nil
}

// batchLimit is how many bytes a batch may be estimated at, so that it stays
// within max bytes on the wire even when compression makes it larger: snappy
// adds 10 bytes to each 32 KiB that it cannot compress, the others less.
func batchLimit(maxBytes int) int { return maxBytes - maxBytes/1024 - 128 }

// checkSize refuses a record that does not fit into a batch of its own. It must
// be seen before the record is handed over: the broker would refuse the whole
// batch, with the record's innocent neighbours.
func (r *record) checkSize(maxBytes int) error {
	size, limit := r.message.ByteSize(2)+batchOverhead, batchLimit(maxBytes)
	if size <= limit {
		return nil
	}
	return &RecordError{
		Field: "size", Size: size, Limit: limit,
		Detail: fmt.Sprintf("%d bytes with key and headers, at most %d fit into a batch of max_message_bytes = %d", size, limit, maxBytes),
	}
}
