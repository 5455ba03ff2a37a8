package consumer

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/outbox"
)

// Event is one delivery of an event. [EventFromRecord] makes one from a Kafka
// record, a [RecordReader] from one of another producer; a receiver of anything else fills in Key, Type and what it knows.
// Handlers must not write to its slices and maps.
type Event struct {
	// Key identifies the event for ever, through every copy. Required.
	Key outbox.Key
	// Type says what happened and chooses the handler. Required, at most 255 bytes.
	Type string
	// AggregateType and AggregateID say to what it happened. AggregateID is the
	// Kafka record key.
	AggregateType string
	AggregateID   []byte
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
	// Source is where the record was read; zero for an event that came from no
	// Kafka record.
	Source Source
	// RecordHeaders are all headers of the record as they came, kept in a dead
	// letter; nil for an event that came from no Kafka record.
	RecordHeaders []Header
	// Late is set for handlers: the event's time lies below the floor of its
	// class, and the group sees it for the first time. What it changes may be
	// newer by now.
	Late bool
	// Unprotected is set for handlers: a replay from below the floor that is
	// applied by the class's policy or by an operator. Its effect may have been
	// made before.
	Unprotected bool

	raw      *Record // of a RecordReader: the record, which the event may not show
	redriven bool    // applied by an operator's command, whatever the policy
	unseen   bool    // the group had not applied it when its letter was written
	accepted bool    // judged before: no floor that has passed it since changes that
}

// ReplayMode says what a replayed event is for.
type ReplayMode string

// The modes of a replay. An event that is no replay has the empty mode.
const (
	ReplayRedeliver ReplayMode = "redeliver" // for groups that have not applied it
	ReplayReprocess ReplayMode = "reprocess" // for one group, to apply it again
)

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

// Header is one header of a Kafka record. A nil value is a null value.
type Header struct {
	Name  string
	Value []byte
}

// Record is one Kafka record in no client's own type, for
// [Router.HandleRecord].
type Record struct {
	Source  Source
	Key     []byte
	Value   []byte // nil is a tombstone
	Headers []Header
}

// ErrMalformed is matched, through [errors.Is], by every [MalformedError].
var ErrMalformed = errors.New("malformed record")

// MalformedError says which header of a record breaks the wire contract, and
// how. No retry mends it.
type MalformedError struct {
	Header string // the header's name; empty when a RecordReader named none
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

func isMalformed(err error) bool {
	var malformed *MalformedError
	return errors.As(err, &malformed)
}

// maxType is the longest event type in bytes, as in the outbox. Types are in an index,
// which takes no longer entries than 2,704 bytes.
const maxType = 255

// ErrEvent: an [Event] built by hand lacks a field or holds text that
// PostgreSQL cannot store.
var ErrEvent = errors.New("invalid event")

// validate checks what every event needs. Events of [EventFromRecord] pass.
func (e *Event) validate() error {
	if e.Key.IsZero() {
		return fmt.Errorf("%w: Key is not set", ErrEvent)
	}
	if e.Type == "" || len(e.Type) > maxType || !isText(e.Type) {
		return fmt.Errorf("%w: Type %.120q: want 1 to %d bytes of UTF-8 text without NUL", ErrEvent, e.Type, maxType)
	}
	return nil
}
