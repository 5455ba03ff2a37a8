package completed

import (
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/record"
)

// Life is what a memory of applied events is bound to. Of another one nothing is known.
type Life struct {
	// History of the database: a failover, a restored snapshot, a start are another one,
	// in which the effect may be missing.
	History string
	// Tables are those of the claims, by their oids: those of another database of the server,
	// or of a dump that was restored, are others.
	Tables string
	Group  string
	Class  string // of the event's type
	// Registered is when the class was: one that was retired meanwhile may have lost its
	// claims.
	Registered time.Time
	// Forgotten is how many claims an operator has made the group forget.
	Forgotten int64
	// Unclaimed: a handler has returned well, and no claim says so.
	Unclaimed bool
	// Window of the class, for which an event is remembered. A value does not say it.
	Window time.Duration
}

// bound is how many bytes of a value say of which life, and which event, it is.
const bound = 16

// Key is where an event is remembered that was claimed under an id.
func Key(group string, id uuid.UUID) string { return group + ":" + id.String() }

// Value is what is remembered of an event: 16 bytes for its life and its id, so that the answer to
// another question is none to this one, and 16 for its content.
func (l Life) Value(id uuid.UUID, f record.Fingerprint) string {
	life := sha256.Sum256(fmt.Appendf(nil, "%x %q %q %q %q %d %d %t", id[:], l.History, l.Tables, l.Group, l.Class, l.Registered.UnixMicro(), l.Forgotten, l.Unclaimed))
	return string(life[:bound]) + string(f[:])
}
