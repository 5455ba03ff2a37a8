package publisher

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/onceward/onceward/record"
)

// Errors of a [Publisher] that callers branch on with [errors.Is].
var (
	// ErrRoute is matched by every [RouteError].
	ErrRoute = errors.New("route unusable")
	// ErrRecord is matched by every [record.RowError].
	ErrRecord = record.ErrRow
	// ErrFailed: the producer gave up on an event. Make a new Publisher and
	// publish again from the first event that was not acknowledged.
	ErrFailed = errors.New("producer failed")
	// ErrClosed: the publisher was closed.
	ErrClosed = errors.New("publisher closed")
	// ErrPartitions is matched by every [PartitionError].
	ErrPartitions = errors.New("partition count changed")
)

// RouteError says that the topic of an event cannot be published to for now.
// The event was not handed over: hold it, and call Publish with it again later.
type RouteError struct {
	// Route is what to hold: the topic's name, or namespace/aggregate_type of
	// the event when no route matched.
	Route  string
	Topic  string // empty when no route matched
	Reason string // what was found
	Cure   string // what to do next, with {topic} for the Topic: of thousands it is one text
	// Passing: it ends by itself within moments, and there is nothing to do.
	Passing bool
	// Wanted: an operator wants it so.
	Wanted bool
}

// Error implements error.
func (e *RouteError) Error() string {
	var b strings.Builder
	if !e.Wanted {
		b.WriteString("route unusable: ")
	}
	if e.Topic != "" {
		fmt.Fprintf(&b, "topic %q ", e.Topic)
	}
	b.WriteString(e.Reason)
	if e.Cure != "" {
		b.WriteString("; " + e.Advice())
	}
	return b.String()
}

// Advice is the Cure with the topic's name in it.
func (e *RouteError) Advice() string { return strings.ReplaceAll(e.Cure, "{topic}", e.Topic) }

// Is reports whether target is [ErrRoute].
func (e *RouteError) Is(target error) bool { return target == ErrRoute }

// PartitionError says that a topic has another partition count than the events
// before were placed by, and that the configuration wants a halt then. Only an
// operator can decide to go on.
type PartitionError struct {
	Topic    string
	From, To int32
}

// Error implements error.
func (e *PartitionError) Error() string {
	return fmt.Sprintf("partition count of topic %q changed from %d to %d: keys move to other partitions, where consumers may read them before what is left in the old ones; "+
		"wait until every consumer group has read the topic to its end, then start the relay again, or set topics.partition_change: go-on", e.Topic, e.From, e.To)
}

// Is reports whether target is [ErrPartitions].
func (e *PartitionError) Is(target error) bool { return target == ErrPartitions }

// The three errors below are what [Publisher.Err] says about one topic. Each
// matches [ErrFailed] and what the broker answered, and none matches [ErrRoute]
// or [ErrRecord], which are about an event that was not handed over.

// LostRouteError says that a route became unusable while events of it were in
// flight. A new publisher looks at it anew and answers with [RouteError]; the
// caller may hold the route at once.
type LostRouteError struct {
	Route string // as in [RouteError]
	Err   error
}

// Error implements error.
func (e *LostRouteError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *LostRouteError) Unwrap() error { return e.Err }

// NarrowError says that a broker refused a batch of a topic for one of its
// records, or for its size. Name the topic in [Config].Narrow of the next
// publisher, which sends its records one by one.
type NarrowError struct {
	Topic string
	Err   error
}

// Error implements error.
func (e *NarrowError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *NarrowError) Unwrap() error { return e.Err }

// RefusedError says that a broker refused a record that was alone in its batch,
// as it will while neither the record nor the topic's settings change. The next
// publisher must not be given it.
type RefusedError struct {
	Topic string
	ID    uuid.UUID // of the row, or of the replay
	Err   error
}

// Error implements error.
func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *RefusedError) Unwrap() error { return e.Err }
