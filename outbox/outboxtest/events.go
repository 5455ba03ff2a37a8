package outboxtest

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/outbox"
)

// Querier reads through pgx: a transaction, a connection or a pool.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// SQLQuerier reads through database/sql: a *sql.Tx, a *sql.DB and what embeds one.
type SQLQuerier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

const (
	readAll = `SELECT id::text, namespace, aggregate_type, aggregate_id, event_type, payload, content_type, headers::text, traceparent
FROM onceward.outbox`
	ofTransaction = ` WHERE tx_id = pg_catalog.pg_current_xact_id_if_assigned()`
	inOrder       = ` ORDER BY seq`
)

// Events returns the events that the transaction tx has enqueued so far, in
// the order of their statements; those of savepoints that were rolled back are not
// among them. Outside a transaction there are none. The role needs SELECT on
// onceward.outbox, more than a writer has: let tests run as the owner.
func Events(t TB, tx Querier) []outbox.Event {
	t.Helper()
	return query(t, tx, readAll+ofTransaction+inOrder)
}

// AllEvents returns all events of the outbox that db sees, in the order of their
// statements. For a database that the test has to itself.
func AllEvents(t TB, db Querier) []outbox.Event {
	t.Helper()
	return query(t, db, readAll+inOrder)
}

// EventsSQL is [Events] for database/sql.
func EventsSQL(t TB, tx SQLQuerier) []outbox.Event {
	t.Helper()
	return querySQL(t, tx, readAll+ofTransaction+inOrder)
}

// AllEventsSQL is [AllEvents] for database/sql.
func AllEventsSQL(t TB, db SQLQuerier) []outbox.Event {
	t.Helper()
	return querySQL(t, db, readAll+inOrder)
}

func query(t TB, db Querier, statement string) []outbox.Event {
	t.Helper()
	rows, err := db.Query(t.Context(), statement)
	if err != nil {
		t.Fatalf("outboxtest: read the outbox: %v", err)
		return nil
	}
	defer rows.Close()
	return collect(t, rows)
}

func querySQL(t TB, db SQLQuerier, statement string) []outbox.Event {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), statement) //nolint:rowserrcheck // collect asks rows.Err
	if err != nil {
		t.Fatalf("outboxtest: read the outbox: %v", err)
		return nil
	}
	defer rows.Close() //nolint:errcheck // collect asks rows.Err
	return collect(t, rows)
}

// cursor is what pgx.Rows and *sql.Rows have in common.
type cursor interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
}

func collect(t TB, rows cursor) (events []outbox.Event) {
	t.Helper()
	for rows.Next() {
		ev, err := scan(rows)
		if err != nil {
			t.Fatalf("outboxtest: read the outbox: %v", err)
			return nil
		}
		events = append(events, ev)
	}
	if err := rows.Err(); err != nil {
		t.Fatalf("outboxtest: read the outbox: %v", err)
	}
	return events
}

func scan(rows cursor) (ev outbox.Event, err error) {
	var id, namespace string
	var headers, traceparent *string
	if err := rows.Scan(&id, &namespace, &ev.AggregateType, &ev.AggregateID, &ev.Type, &ev.Payload, &ev.ContentType,
		&headers, &traceparent); err != nil {
		return ev, fmt.Errorf("scan event: %w", err)
	}
	if ev.Key, err = keyOf(namespace, id); err != nil {
		return ev, err
	}
	if traceparent != nil {
		ev.Traceparent = *traceparent
	}
	if headers != nil {
		if err := json.Unmarshal([]byte(*headers), &ev.Headers); err != nil {
			return ev, fmt.Errorf("headers of %s: %w", ev.Key, err)
		}
	}
	return ev, nil
}

// keyOf puts a key together from two columns. It was judged when it was written.
func keyOf(namespace, id string) (outbox.Key, error) {
	parsed, err := uuid.Parse(id)
	if err != nil {
		return outbox.Key{}, fmt.Errorf("id of an event: %w", err)
	}
	key, err := outbox.KeyFrom(namespace, parsed, time.Now(), outbox.NoSkewLimit)
	if err != nil {
		return outbox.Key{}, fmt.Errorf("key of an event: %w", err)
	}
	return key, nil
}
