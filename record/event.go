package record

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/outbox"
)

// Event is what a record says: of the event, and of this copy of it.
type Event struct {
	// Key identifies the event for ever, through every copy. Required.
	Key outbox.Key
	// Type says what happened and chooses the handler. Required, at most [MaxType] bytes.
	Type string
	// AggregateType and AggregateID say to what it happened. AggregateID is the
	// Kafka record key, byte for byte: text, if a relay of ours wrote it.
	AggregateType string
	AggregateID   string
	// Payload is opaque. nil is a tombstone; an empty slice is an empty value.
	Payload []byte
	// ContentType is the payload's media type; empty when the record named none.
	ContentType string
	// OccurredAt is when the outbox row was written, in UTC; zero when unknown.
	OccurredAt time.Time
	// Traceparent is the W3C trace context of the writing request, or empty.
	Traceparent string
	// Position is the replication position that the relay wrote, for forensics.
	// It differs between copies of one event.
	Position string
	// ReplayID, ReplayMode and ReplayGroup are set on replays only, RepairID on
	// gap repairs only. The key is the original one.
	ReplayID    uuid.UUID
	ReplayMode  ReplayMode
	ReplayGroup string
	RepairID    uuid.UUID
	// Headers are the producer's own headers. Of a name that occurs more than
	// once, the last value counts.
	Headers map[string]string
}

// MaxType is the longest event type in bytes, as in the outbox. Types are in an index,
// which takes no longer entries than 2,704 bytes.
const MaxType = 255

// Record is one Kafka record in no client's own type.
type Record struct {
	Source  Source
	Key     []byte
	Value   []byte // nil is a tombstone
	Headers []Header
}

// Source is the place of a record in Kafka. A record is one event: where two events of
// one Source are claimed by arrival, only the last one is remembered when their claims
// have gone, and the other may be applied again.
type Source struct {
	Topic     string
	Partition int32
	Offset    int64
	// TopicID is Kafka's id of the topic, which has another one when it was made
	// anew; zero when it is not known. Package saramagroup fills it in. What the
	// marks say of an offset is proof for a record of the same id only.
	TopicID uuid.UUID
}

// String returns topic/partition@offset.
func (s Source) String() string { return fmt.Sprintf("%s/%d@%d", s.Topic, s.Partition, s.Offset) }

// ErrRow is matched, through [errors.Is], by every [RowError].
var ErrRow = errors.New("row cannot become a record")

// RowError says why a row can never become a record, whatever the cluster does.
type RowError struct {
	Field  string // the column; of package publisher also "size" or "topic"
	Path   string // JSON path inside the column, for headers
	Detail string
	Size   int // estimated bytes of the record, when Field is "size"
	Limit  int // bytes that a record may have, when Field is "size"
}

// Error implements error.
func (e *RowError) Error() string {
	field := e.Field
	if e.Path != "" {
		field += " at " + e.Path
	}
	return fmt.Sprintf("%v: %s: %s", ErrRow, field, e.Detail)
}

// Is reports whether target is [ErrRow].
func (e *RowError) Is(target error) bool { return target == ErrRow }

// ErrMalformed is matched, through [errors.Is], by every [MalformedError].
var ErrMalformed = errors.New("malformed record")

// MalformedError says which header of a record breaks the wire contract, and
// how. No retry mends it.
type MalformedError struct {
	Header string // the header's name; empty when a reader named none
	Detail string // what was found and what is wanted
	Err    error  // the cause, e.g. an *outbox.KeyError; may be nil
}

// Error implements error.
func (e *MalformedError) Error() string {
	if e.Header == "" {
		return "malformed record: " + e.Detail
	}
	return fmt.Sprintf("malformed record: header %s: %s", e.Header, e.Detail)
}

// Is reports whether target is [ErrMalformed].
func (e *MalformedError) Is(target error) bool { return target == ErrMalformed }

// Unwrap returns the cause, if there is one.
func (e *MalformedError) Unwrap() error { return e.Err }
