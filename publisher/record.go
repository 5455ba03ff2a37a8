package publisher

import (
	"fmt"
	"sync/atomic"
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
	// Topic, when set, takes the place of the route: a replay goes to a topic
	// of its own. It is checked as a route's is: name and allow-list.
	Topic string
	// Replay is set on replays and becomes the headers replay-id, replay-mode
	// and replay-group.
	Replay *Replay
	// RepairID, when not zero, becomes header repair-id: a gap repair made this
	// copy.
	RepairID uuid.UUID
}

// Replay says why an event that was published already is published again.
type Replay struct {
	ID    uuid.UUID // of this replay of this event; required
	Mode  string    // redeliver or reprocess
	Group string    // the consumer group of a reprocess, else empty
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
	id      uuid.UUID // of the row, or of the replay
	topic   *topic
	lane    *atomic.Int64 // of the topic's partition, when no batch is shared
	cost    int64         // bytes of memory it accounts for while in flight
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

// newRecord builds the record of an event without topic and partition. It is
// pure: the same event gives the same bytes. The timestamp stays unset, which
// makes sarama stamp the time of publishing: Kafka deletes at once what is
// stamped older than the retention, as the event time of a replay may be.
func newRecord(ev Event, style string) (*record, error) {
	row := ev.Row
	if err := checkRow(row); err != nil {
		return nil, err
	}
	if err := checkStyle(&ev, style); err != nil {
		return nil, err
	}
	r := &record{tag: ev.Tag, id: row.ID, key: row.AggregateID, value: row.Payload}
	if r.key == nil {
		r.key = []byte{} // the empty key is a key; nil would have no order
	}
	if ev.Replay != nil {
		r.id = ev.Replay.ID
	}
	r.message.Metadata = r
	r.message.Key = (*keyOf)(r)
	if r.value != nil {
		r.message.Value = (*valueOf)(r) // else a tombstone: the interface itself must be nil
	}
	headers := contractHeaders(r.headers[:0], &ev, style)
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

// size is how many bytes a batch of this record alone has at most, before
// compression.
func (r *record) size() int { return r.message.ByteSize(2) + batchOverhead }

// checkSize refuses a record that does not fit into a batch of its own. It must
// be seen before the record is handed over: the broker would refuse the whole
// batch, with the record's innocent neighbours.
func (r *record) checkSize(maxBytes int) error {
	size, limit := r.size(), batchLimit(maxBytes)
	if size <= limit {
		return nil
	}
	return &RecordError{
		Field: "size", Size: size, Limit: limit,
		Detail: fmt.Sprintf("%d bytes with key and headers, at most %d fit into a batch of max_message_bytes = %d", size, limit, maxBytes),
	}
}
