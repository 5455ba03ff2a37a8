package publisher

import (
	"sync/atomic"
	"unsafe"

	"github.com/IBM/sarama"
	"github.com/google/uuid"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher/internal/limit"
	"github.com/onceward/onceward/record"
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
	Replay *record.Replay
	// RepairID, when not zero, becomes header repair-id: a gap repair made this copy.
	RepairID uuid.UUID
	Again    bool // refused before; the limit of its topic may have been raised just now, and is asked first
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

// pending is one event between Publish and its acknowledgement, in a single
// allocation. The encoders are pointer types into it, because a byte slice put
// into an interface is an allocation of its own.
type pending struct {
	message sarama.ProducerMessage
	tag     uint64
	id      uuid.UUID // of the row, or of the replay
	topic   *topic
	serial  *atomic.Int64 // records in flight in the topic's partition, when no batch is shared
	cost    int64         // bytes of memory it accounts for while in flight
	key     []byte
	value   []byte
	headers [inlineHeaders]sarama.RecordHeader
}

// pendingOf returns the record of a message that came back. There are no other
// messages: Publish makes them all.
func pendingOf(message *sarama.ProducerMessage) *pending {
	r, _ := message.Metadata.(*pending)
	return r
}

// keyOf and valueOf implement sarama.Encoder over a record's own slices.
type (
	keyOf   pending
	valueOf pending
)

func (k *keyOf) Encode() ([]byte, error)   { return k.key, nil }
func (k *keyOf) Length() int               { return len(k.key) }
func (v *valueOf) Encode() ([]byte, error) { return v.value, nil }
func (v *valueOf) Length() int             { return len(v.value) }

// newPending builds the record of an event without topic and partition. It is
// pure: the same event gives the same bytes. The timestamp stays unset, which
// makes sarama stamp the time of publishing: Kafka deletes at once what is
// stamped older than the retention, as the event time of a replay may be.
func newPending(ev Event, style string) (*pending, error) {
	row := ev.Row
	r := &pending{tag: ev.Tag, id: row.ID, key: row.AggregateID, value: row.Payload}
	if r.key == nil {
		r.key = []byte{} // the empty key is a key; nil would have no order
	}
	published := record.Copy{Row: row, Position: ev.Position, RepairID: ev.RepairID}
	if ev.Replay != nil {
		if *ev.Replay == (record.Replay{}) {
			return nil, &record.RowError{Field: "replay_mode", Detail: "a replay has an id and a mode"}
		}
		published.Replay, r.id = *ev.Replay, ev.Replay.ID
	}
	var err error
	if r.message.Headers, err = record.AppendHeaders(r.headers[:0], published, style); err != nil {
		return nil, err
	}
	r.message.Metadata = r
	r.message.Key = (*keyOf)(r)
	if r.value != nil {
		r.message.Value = (*valueOf)(r) // else a tombstone: the interface itself must be nil
	}
	r.cost = int64(r.message.ByteSize(2)) + int64(unsafe.Sizeof(*r)) + companions
	return r, nil
}

// size is how many bytes a batch of this record alone has at most, before
// compression.
func (r *pending) size() int { return r.message.ByteSize(2) + batchOverhead }

// sized is its size as that of an event, or of a copy of one.
func (r *pending) sized(ev *Event) limit.Record {
	return limit.Record{Size: r.size(), Copy: ev.Replay != nil || ev.RepairID != uuid.Nil}
}
