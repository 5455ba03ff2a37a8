package operator

import (
	"time"

	"github.com/google/uuid"
)

// MaxListed bounds what one answer holds in memory.
const MaxListed = 100_000

// Selection says which events or letters a command is about: those of the KEYs,
// or those that all the filters given match.
type Selection struct {
	Keys          []Name
	Namespace     string
	AggregateType string
	Aggregate     string
	EventType     string
	From, To      *time.Time // from is in, to is out
}

// Filtered tells whether a filter was given.
func (s Selection) Filtered() bool {
	return s.Namespace+s.AggregateType+s.Aggregate+s.EventType != "" || s.From != nil || s.To != nil
}

// IDs are the UUIDs of the KEYs; never nil, because a nil array is no empty one
// in SQL.
func (s Selection) IDs() []uuid.UUID {
	ids := make([]uuid.UUID, 0, len(s.Keys))
	for _, k := range s.Keys {
		ids = append(ids, k.ID)
	}
	return ids
}
