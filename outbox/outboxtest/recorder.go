package outboxtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/outbox/internal/statement"
)

// ErrStatement: a [Recorder] was given SQL that is not package outbox's.
var ErrStatement = errors.New("outboxtest: a Recorder answers the statements of package outbox only; use a database for others")

// Recorder is an [outbox.Tx] without a database, for [outbox.Enqueue] and
// [outbox.EnqueueMany]; [Recorder.SQL] is the same for [outbox.EnqueueSQL]. It
// answers as PostgreSQL would: [outbox.Duplicate] for a key that it holds with the
// same content, [outbox.ErrKeyReused] for other content. The zero value is ready. It
// may be used concurrently.
type Recorder struct {
	// Err, when set, is what every statement fails with, so that a test sees what
	// the service makes of it. Set it before use.
	Err error

	mu     sync.Mutex
	events []outbox.Event
}

var _ outbox.Tx = (*Recorder)(nil)

// Events returns what was enqueued, in order. The slice is the caller's.
func (r *Recorder) Events() []outbox.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// Exec implements [outbox.Tx].
func (r *Recorder) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if r.Err != nil {
		return pgconn.CommandTag{}, r.Err
	}
	if sql != statement.Insert {
		return pgconn.CommandTag{}, fmt.Errorf("%w: %s", ErrStatement, sql)
	}
	ev, err := eventOf(args)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	if r.add(ev) {
		return pgconn.NewCommandTag("INSERT 0 1"), nil
	}
	return pgconn.NewCommandTag("INSERT 0 0"), nil
}

// QueryRow implements [outbox.Tx].
func (r *Recorder) QueryRow(_ context.Context, sql string, args ...any) pgx.Row {
	if r.Err != nil {
		return row{err: r.Err}
	}
	switch sql {
	case statement.Compare:
		ev, err := eventOf(append(slices.Clone(args), nil)) // without the trace context
		if err != nil {
			return row{err: err}
		}
		return row{value: r.same(ev)}
	case statement.InsertMany, statement.CompareMany:
		events, err := eventsOf(args)
		if err != nil {
			return row{err: err}
		}
		if sql == statement.InsertMany {
			return row{value: r.addAll(events)}
		}
		var same []*bool
		for _, ev := range events {
			answer := r.same(ev)
			same = append(same, &answer)
		}
		return row{value: same}
	}
	return row{err: fmt.Errorf("%w: %s", ErrStatement, sql)}
}

// Queued returns the events that [outbox.QueueEnqueue] queued on a batch, in
// order. The batch may be sent before or after, or not at all.
func Queued(t TB, batch *pgx.Batch) (events []outbox.Event) {
	t.Helper()
	for _, q := range batch.QueuedQueries {
		if q.SQL != statement.Call {
			continue
		}
		key, _ := q.Arguments[0].(string)
		namespace, id, _ := strings.Cut(key, ":")
		ev, err := eventOf(append([]any{id, namespace}, q.Arguments[1:]...))
		if err != nil {
			t.Fatalf("outboxtest: read the batch: %v", err)
			return nil
		}
		events = append(events, ev)
	}
	return events
}

func (r *Recorder) find(key outbox.Key) int {
	return slices.IndexFunc(r.events, func(e outbox.Event) bool { return e.Key.UUID() == key.UUID() })
}

// add keeps the event unless the id is taken.
func (r *Recorder) add(ev outbox.Event) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.find(ev.Key) >= 0 {
		return false
	}
	r.events = append(r.events, ev)
	return true
}

func (r *Recorder) addAll(events []outbox.Event) (ids []string) {
	for _, ev := range events {
		if r.add(ev) {
			ids = append(ids, ev.Key.UUID().String())
		}
	}
	return ids
}

// same compares what statement.Compare does, with the event of the same id.
func (r *Recorder) same(ev outbox.Event) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := r.find(ev.Key)
	if i < 0 {
		return false
	}
	o := r.events[i]
	return o.Key == ev.Key && o.AggregateType == ev.AggregateType && o.AggregateID == ev.AggregateID &&
		o.Type == ev.Type &&
		bytes.Equal(o.Payload, ev.Payload) && (o.Payload == nil) == (ev.Payload == nil) &&
		o.ContentType == ev.ContentType && maps.Equal(o.Headers, ev.Headers)
}

// row is one answer, already a Go value.
type row struct {
	value any
	err   error
}

// Scan implements pgx.Row for the types that package outbox reads into.
func (r row) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	switch d := dest[0].(type) {
	case *bool:
		*d, _ = r.value.(bool)
	case *[]string:
		*d, _ = r.value.([]string)
	case *[]*bool:
		*d, _ = r.value.([]*bool)
	default:
		return fmt.Errorf("%w: scan into %T", ErrStatement, d)
	}
	return nil
}

// eventOf reads the arguments of statement.Insert back into an event.
func eventOf(args []any) (ev outbox.Event, err error) {
	if len(args) != 9 {
		return ev, fmt.Errorf("%w: %d arguments", ErrStatement, len(args))
	}
	text := func(i int) string { s, _ := args[i].(string); return s }
	if ev.Key, err = keyOf(text(1), text(0)); err != nil {
		return ev, err
	}
	ev.AggregateType, ev.AggregateID, ev.Type = text(2), text(3), text(4)
	ev.ContentType, ev.Traceparent = text(6), text(8)
	if payload, ok := args[5].([]byte); ok {
		ev.Payload = append([]byte{}, payload...)
	}
	if headers := text(7); headers != "" {
		if err := json.Unmarshal([]byte(headers), &ev.Headers); err != nil {
			return ev, fmt.Errorf("headers of %s: %w", ev.Key, err)
		}
	}
	return ev, nil
}

// eventsOf reads the arguments of statement.InsertMany.
func eventsOf(args []any) ([]outbox.Event, error) {
	ids, ok := args[0].([]string)
	if !ok || len(args) != 9 {
		return nil, fmt.Errorf("%w: arguments are not arrays", ErrStatement)
	}
	events := make([]outbox.Event, len(ids))
	for i := range ids {
		one := make([]any, len(args))
		for n, column := range args {
			one[n] = element(column, i)
		}
		ev, err := eventOf(one)
		if err != nil {
			return nil, err
		}
		events[i] = ev
	}
	return events, nil
}

// element takes one value out of a column's array; a nil one is NULL.
func element(column any, i int) any {
	switch c := column.(type) {
	case []string:
		return c[i]
	case [][]byte:
		if c[i] != nil {
			return c[i]
		}
	case []*string:
		if c[i] != nil {
			return *c[i]
		}
	}
	return nil
}
