package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
)

// eventName is how a person names an event: by its key, or by the UUID of it alone.
// Only the UUID names an event whose key is none, because its namespace is
// malformed or its UUID of another version.
type eventName struct {
	namespace string
	id        uuid.UUID
	bare      bool // the namespace is not known
}

func readName(text string) (eventName, error) {
	if id, err := uuid.Parse(text); err == nil && len(text) == len(uuid.Nil.String()) {
		return eventName{id: id, bare: true}, nil
	}
	key, err := readKey(text)
	return eventName{namespace: key.Namespace(), id: key.UUID()}, err
}

// readOneName is for commands about one event.
func readOneName(c *cli.Context) (eventName, error) {
	if err := checkOutput(c); err != nil {
		return eventName{}, err
	}
	if c.NArg() != 1 {
		return eventName{}, usage("%s takes one KEY, got %d; %s", c.Command.HelpName, c.NArg(), keyExample)
	}
	return readName(c.Args().First())
}

// String is what the same command takes.
func (n eventName) String() string {
	if n.bare {
		return n.id.String()
	}
	return nameText(n.namespace, n.id)
}

// is tells whether the name may be that of an event of the namespace.
func (n eventName) is(namespace string) bool { return n.bare || n.namespace == namespace }

// Time is the event time; that of a UUID of another version means nothing.
func (n eventName) Time() time.Time { return outbox.IDTime(n.id) }

// nameText is how a command that we print names an event: by its key or, when that
// is none, by the UUID.
func nameText(namespace string, id uuid.UUID) string {
	if _, err := outbox.KeyFrom(namespace, id, time.Now(), outbox.NoSkewLimit); err != nil {
		return id.String()
	}
	return keyText(namespace, id)
}

// resolve looks the namespace of a bare UUID up, in the outbox and among its letters.
// One that is in neither stays as it is.
func (n eventName) resolve(ctx context.Context, db *database) (eventName, error) {
	if !n.bare {
		return n, nil
	}
	q := outboxdb.New(db)
	row, err := q.FindOutboxRow(ctx, n.id)
	if err == nil {
		return eventName{namespace: row.Namespace, id: n.id}, nil
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return n, fmt.Errorf("look up %s: %w", n, explain(err, migrations.Outbox))
	}
	letters, err := q.DeadLettersByID(ctx, []uuid.UUID{n.id})
	if err != nil {
		return n, fmt.Errorf("look up %s: %w", n, explain(err, migrations.Outbox))
	}
	if len(letters) > 0 {
		return eventName{namespace: letters[0].Namespace, id: n.id}, nil
	}
	return n, nil
}
