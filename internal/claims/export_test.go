package claims

import (
	"time"

	"github.com/google/uuid"
)

// Starts are the ids of the releases that claimed under the starts of a bucket and of
// the next.
func Starts(id uuid.UUID, length time.Duration, at time.Time) []uuid.UUID {
	return bucketIDs(id, length, at, 0, 1)
}
