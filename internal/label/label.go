// Package label says what logs, errors and commands that are printed call
// things by. Names come from rows, and may be as long as a direct INSERT likes: all
// are bounded here. It is pure.
package label

import (
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/onceward/onceward/outbox"
)

// MaxName bounds a name of a row, in bytes.
const MaxName = 128

// Clip returns at most limit bytes of a text, and says when that is not all.
func Clip(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit] + "…"
}

// Short shortens what came from elsewhere for an error.
func Short(text string) string { return Foreign(Clip(text, 120)) }

// Key is an event's key as logs and errors show it.
func Key(row *outbox.Row) string {
	return Foreign(Clip(row.Namespace, MaxName)) + ":" + row.ID.String()
}

// Argument is what a command that we print calls an event: its key or, when that is
// none, by which the command would refuse it, the UUID alone.
func Argument(namespace string, id uuid.UUID) string {
	key, err := outbox.KeyFrom(namespace, id, time.Now(), outbox.NoSkewLimit)
	if err != nil {
		return id.String()
	}
	return key.String()
}
