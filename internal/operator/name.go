package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/secret"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
)

// KeyExample says what a key looks like, for who gave something else.
const KeyExample = "a key looks like payments:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a: the producing service, a colon, a UUID of version 7 or 8; " +
	"commands about events and letters take the UUID alone, too"

// Name is how a person names an event: by its key, or by the UUID of it alone.
// Only the UUID names an event whose key is none, because its namespace is
// malformed or its UUID of another version.
type Name struct {
	Namespace string
	ID        uuid.UUID
	Bare      bool // the namespace is not known
}

// ParseName reads a key, or a UUID alone.
func ParseName(text string) (Name, error) {
	if id, err := uuid.Parse(text); err == nil && len(text) == len(uuid.Nil.String()) {
		return Name{ID: id, Bare: true}, nil
	}
	key, err := ParseKey(text)
	return Name{Namespace: key.Namespace(), ID: key.UUID()}, err
}

// ParseKey reads a key. It does not judge the key's time: an event of a clock that runs ahead is
// there all the same.
func ParseKey(text string) (outbox.Key, error) {
	key, err := outbox.ParseKeyAt(text, time.Now(), outbox.NoSkewLimit)
	switch {
	case !errors.Is(err, outbox.ErrKey):
		return key, err
	case secret.Suspect(text):
		return key, Unclear("KEY is %s; %s", secret.Argument(text), KeyExample)
	}
	return key, Unclear("%v; %s", err, KeyExample)
}

// String is what the same command takes.
func (n Name) String() string {
	if n.Bare {
		return n.ID.String()
	}
	return NameText(n.Namespace, n.ID)
}

// Is tells whether the name may be that of an event of the namespace.
func (n Name) Is(namespace string) bool { return n.Bare || n.Namespace == namespace }

// Time is the event time; that of a UUID of another version means nothing.
func (n Name) Time() time.Time { return outbox.IDTime(n.ID) }

// NameText is how a command that we print names an event: by its key or, when that
// is none, by the UUID.
func NameText(namespace string, id uuid.UUID) string {
	if _, err := outbox.KeyFrom(namespace, id, time.Now(), outbox.NoSkewLimit); err != nil {
		return id.String()
	}
	return KeyText(namespace, id)
}

// Resolve looks the namespace of a bare UUID up, in the outbox and among its letters.
// One that is in neither stays as it is.
func (n Name) Resolve(ctx context.Context, db *Database) (Name, error) {
	if !n.Bare {
		return n, nil
	}
	q := outboxdb.New(db)
	row, err := q.FindOutboxRow(ctx, n.ID)
	if err == nil {
		return Name{Namespace: row.Namespace, ID: n.ID}, nil
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return n, fmt.Errorf("look up %s: %w", n, Explain(err, migrations.Outbox))
	}
	letters, err := q.DeadLettersByID(ctx, []uuid.UUID{n.ID})
	if err != nil {
		return n, fmt.Errorf("look up %s: %w", n, Explain(err, migrations.Outbox))
	}
	if len(letters) > 0 {
		return Name{Namespace: letters[0].Namespace, ID: n.ID}, nil
	}
	return n, nil
}

// KeyText is a key as it is written, also where it is none.
func KeyText(namespace string, id uuid.UUID) string { return namespace + ":" + id.String() }
