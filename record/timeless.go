package record

import (
	"time"

	"github.com/onceward/onceward/outbox"
)

// timeless is the event time of keys that carry none.
var timeless = time.Date(2015, 1, 1, 0, 0, 0, 0, time.UTC)

// TimelessKey returns the key of an event that another system has named by an id
// without a time, such as a delivery GUID or a UUIDv4. By event time it lies below
// every floor: its class must be keyed by arrival (consumer.ByArrival). The error is an
// *outbox.KeyError.
func TimelessKey(namespace, externalID string) (outbox.Key, error) {
	return outbox.ExternalKey(namespace, externalID, timeless)
}

// Timeless reports whether a key carries no time, as those of [TimelessKey].
func Timeless(k outbox.Key) bool { return k.Time().Equal(timeless) }

// foreignKey is the key of an event by its id elsewhere, and by its time when it
// has one that counts.
func foreignKey(namespace, id string, at time.Time, noTime bool) (outbox.Key, error) {
	if noTime || at.IsZero() {
		return TimelessKey(namespace, id)
	}
	return outbox.ExternalKey(namespace, id, at)
}
