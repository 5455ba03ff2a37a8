package outbox

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// DefaultContentType is written when [Event.ContentType] is empty.
const DefaultContentType = "application/json"

// Event is what a service says happened. It becomes one row of onceward.outbox
// and, after the commit, one Kafka record.
type Event struct {
	// Key identifies the event for ever, whatever is retried. Required.
	Key Key
	// AggregateType routes to the topic, e.g. "order". Required.
	AggregateType string
	// AggregateID is the Kafka record key and the unit of order: events of one
	// aggregate appear in commit order. Required.
	AggregateID string
	// Type says what happened, e.g. "OrderPaid". Required.
	Type string
	// Payload is opaque. nil is a tombstone; an empty slice is an empty value.
	Payload []byte
	// ContentType is the payload's media type, [DefaultContentType] when empty.
	ContentType string
	// Headers are the user's own record headers. Names of the wire contract are
	// reserved (see [ReservedHeader]); values must be UTF-8 text without NUL.
	Headers map[string]string
	// Traceparent is the W3C trace context of the writing request, or empty.
	Traceparent string
}

// Row is an event as the relay reads it from the log: the row of the outbox
// with the columns that PostgreSQL filled in. Byte slices belong to the row and
// are never written to after it was made.
type Row struct {
	ID            uuid.UUID
	Namespace     string
	AggregateType string
	AggregateID   []byte
	Type          string
	Payload       []byte // nil is a tombstone
	ContentType   string
	Headers       []byte // the jsonb text of the user's headers; nil when NULL
	Traceparent   []byte // nil when NULL
	CreatedAt     time.Time
	TxID          uint64 // xid8 of the writing transaction
	Seq           int64  // statement order
}

// ErrEvent is matched, through [errors.Is], by every error about an event that
// breaks the contract before it reached the database.
var ErrEvent = errors.New("invalid event")

// EventError says which field of an [Event] is wrong, and why.
type EventError struct {
	Field  string
	Detail string
}

// Error implements error.
func (e *EventError) Error() string { return fmt.Sprintf("invalid event: %s: %s", e.Field, e.Detail) }

// Is reports whether target is [ErrEvent].
func (e *EventError) Is(target error) bool { return target == ErrEvent }

// Validate checks everything about the event that needs no database. The error
// is an [*EventError] or, for the event time, a [*KeyError].
func (e *Event) Validate(now time.Time) error {
	if e.Key.IsZero() {
		return &EventError{Field: "Key", Detail: "not set; make one with outbox.NewKey before the transaction"}
	}
	if err := checkID(e.Key.String(), e.Key.id, now, DefaultKeySkew); err != nil {
		return err
	}
	for _, f := range []struct {
		name, value string
		required    bool
	}{
		{"AggregateType", e.AggregateType, true},
		{"AggregateID", e.AggregateID, true},
		{"Type", e.Type, true},
		{"ContentType", e.ContentType, false},
		{"Traceparent", e.Traceparent, false},
	} {
		if f.required && f.value == "" {
			return &EventError{Field: f.name, Detail: "empty; it is required"}
		}
		if err := checkText(f.value); err != nil {
			return &EventError{Field: f.name, Detail: err.Error()}
		}
	}
	return validateHeaders(e.Headers)
}

// checkText refuses what a PostgreSQL text column cannot hold.
func checkText(s string) error {
	if !utf8.ValidString(s) {
		return errors.New("not valid UTF-8")
	}
	for i := range len(s) {
		if s[i] == 0 {
			return fmt.Errorf("holds a NUL at byte %d, which PostgreSQL cannot store", i)
		}
	}
	return nil
}
