package memory

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/onceward/onceward/record"
)

// Tries is the id under which is counted how often the handling of an event has failed, broken its
// transaction, or not come back. One that is known by its content shares its own id with all that ever
// say the same, so that the tries are those of its record, or of its letter; one from no
// topic has nothing else. It is pure.
func Tries(id uuid.UUID, content bool, at record.Source) uuid.UUID {
	if !content || at.Topic == "" {
		return id
	}
	return uuid.NewSHA1(id, fmt.Appendf(nil, "%s %s", at, at.TopicID))
}
