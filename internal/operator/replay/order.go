package replay

import (
	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/kafka"
)

const (
	// MaxRate is beyond what one session inserts.
	MaxRate = 100_000
	// maxReplayed bounds the memory for ids, at 24 bytes each.
	maxReplayed = 5_000_000
)

// Order is what is to be replayed.
type Order struct {
	operator.Selection
	Dead      bool   // of letters, in place of published events
	Topic     string // in place of where the routes lead
	Group     string // to reprocess; empty: redeliver
	Reason    string
	Rate      int // events a second
	After     Place
	DryRun    bool
	Unchecked bool // nobody asks Kafka whether a topic is compacted
	Kafka     kafka.Where
}

// Result is what an order selects, and how far it was requested.
type Result struct {
	DryRun    bool               `json:"dry_run"`
	Mode      string             `json:"mode"`
	Group     string             `json:"replay_group,omitempty"`
	Topic     string             `json:"topic,omitempty"` // empty: by the routes
	Reason    string             `json:"reason,omitempty"`
	Selected  int                `json:"selected"`
	Requested int                `json:"requested"`
	Gone      int                `json:"gone"`  // between count and request
	After     string             `json:"after"` // the last row that was asked for; empty: none
	Kinds     []Kind             `json:"kinds"`
	LeftOut   []Left             `json:"left_out"`
	Problems  []operator.Problem `json:"problems"` // why nothing is replayed
}

// Kind counts events that take one route.
type Kind struct {
	Namespace     string `json:"namespace"`
	AggregateType string `json:"aggregate_type"`
	EventType     string `json:"event_type"`
	Events        int64  `json:"events"`
}

// Left counts events of a state that is not replayed.
type Left struct {
	State  string `json:"state"`
	Events int64  `json:"events"`
	Why    string `json:"why"`
}

// Question says what would be replayed.
func (r *Result) Question() string {
	q := "replay " + label.Count(r.Selected, "event")
	if r.Topic != "" {
		q += " to topic " + r.Topic
	}
	if r.Group != "" {
		q += ", for group " + r.Group + " to apply them again"
	}
	return q
}

// Wrong tells that nothing is replayed for a problem.
func (r *Result) Wrong() bool { return len(r.Problems) > 0 }
