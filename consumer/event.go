package consumer

import (
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// Event is one delivery of an event: what its record says, where that was read, and what
// the consumer knows of it. [record.Decode] reads what a relay has written, a [RecordReader]
// what others have; a receiver of anything else fills in Key, Type and what it knows.
// Handlers must not write to its slices and maps.
type Event struct {
	record.Event
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

	raw      *Record   // of a RecordReader: the record, which the event may not show
	redriven bool      // applied by an operator's command, whatever the policy
	unseen   bool      // the group had not applied it when its letter was written
	accepted bool      // judged before: no floor that has passed it since changes that
	arrived  time.Time // of a letter that is redriven: when it was written
	claimed  bool      // and that with claims of its own
}

// Of package record, for [Router.HandleRecord].
type (
	// Record is a record of Kafka, in no client's own type.
	Record = record.Record
	// Source is its place.
	Source = record.Source
	// Header is one of its headers.
	Header = record.Header
)

// ErrEvent: an [Event] built by hand lacks a field or holds text that
// PostgreSQL cannot store.
var ErrEvent = errors.New("invalid event")

// validate checks what every event needs. Events of [record.Decode] pass.
func (e *Event) validate() error {
	if e.Key.IsZero() {
		return fmt.Errorf("%w: Key is not set", ErrEvent)
	}
	if e.Type == "" || len(e.Type) > record.MaxType || !consumerdb.IsText(e.Type) {
		return fmt.Errorf("%w: Type %.120q: want 1 to %d bytes of UTF-8 text without NUL", ErrEvent, e.Type, record.MaxType)
	}
	return nil
}

// writable checks an event from no topic, whose letter is written as a record: it has to be
// one that a record can hold.
func (e *Event) writable() error {
	if e.Source.Topic != "" {
		return nil
	}
	for field, text := range map[string]string{"AggregateType": e.AggregateType, "ContentType": e.ContentType} {
		if !consumerdb.IsText(text) {
			return fmt.Errorf("%w: %s %.120q: want UTF-8 text without NUL", ErrEvent, field, text)
		}
	}
	for name := range e.Headers {
		if name == "" || outbox.ReservedHeader(name) {
			return fmt.Errorf("%w: Headers has %.120q: it is empty, or reserved by the wire contract; choose another name", ErrEvent, name)
		}
	}
	return nil
}
