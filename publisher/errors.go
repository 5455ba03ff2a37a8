package publisher

import (
	"errors"
	"fmt"
	"strings"
)

// Errors of a [Publisher] that callers branch on with [errors.Is].
var (
	// ErrRoute is matched by every [RouteError].
	ErrRoute = errors.New("route unusable")
	// ErrRecord is matched by every [RecordError].
	ErrRecord = errors.New("row cannot become a record")
	// ErrFailed: the producer gave up on an event. Make a new Publisher and
	// publish again from the first event that was not acknowledged.
	ErrFailed = errors.New("producer failed")
	// ErrClosed: the publisher was closed.
	ErrClosed = errors.New("publisher closed")
)

// RouteError says that the topic of an event cannot be published to for now.
// The event was not handed over: hold it, and call Publish with it again later.
type RouteError struct {
	Topic  string // empty when no route matched
	Reason string // what was found
	Cure   string // what to do next
}

// Error implements error.
func (e *RouteError) Error() string {
	var b strings.Builder
	b.WriteString("route unusable: ")
	if e.Topic != "" {
		fmt.Fprintf(&b, "topic %q ", e.Topic)
	}
	b.WriteString(e.Reason)
	if e.Cure != "" {
		b.WriteString("; " + e.Cure)
	}
	return b.String()
}

// Is reports whether target is [ErrRoute].
func (e *RouteError) Is(target error) bool { return target == ErrRoute }

// RecordError says why a row can never become a record, whatever the cluster
// does. Nothing was handed over.
type RecordError struct {
	Field  string // the column, or "size" or "topic"
	Path   string // JSON path inside the column, for headers
	Detail string
	Size   int // estimated bytes of the record, when Field is "size"
	Limit  int // bytes that a record may have, when Field is "size"
}

// Error implements error.
func (e *RecordError) Error() string {
	field := e.Field
	if e.Path != "" {
		field += " at " + e.Path
	}
	return fmt.Sprintf("row cannot become a record: %s: %s", field, e.Detail)
}

// Is reports whether target is [ErrRecord].
func (e *RecordError) Is(target error) bool { return target == ErrRecord }
