package letters

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/migrations"
)

// Letter is a relay's letter without its content.
type Letter struct {
	Key           string     `json:"key"` // of the letter: a replay's has the replay's id in it
	ReplayOf      string     `json:"replay_of,omitempty"`
	Slot          string     `json:"slot"`
	State         string     `json:"state"`
	AggregateType string     `json:"aggregate_type"`
	AggregateID   string     `json:"aggregate_id"`
	EventType     string     `json:"event_type"`
	CreatedAt     time.Time  `json:"created_at"`
	Seq           int64      `json:"seq"`
	Position      string     `json:"position"`
	Class         string     `json:"error_class"`
	Error         string     `json:"error"`
	Holds         bool       `json:"holds_aggregate"` // later events of the aggregate wait behind it
	Attempts      int32      `json:"attempts"`
	FirstAt       time.Time  `json:"first_at"`
	LastAt        time.Time  `json:"last_at"`
	ControlID     *uuid.UUID `json:"control_id,omitempty"`
	DecidedBy     *string    `json:"decided_by,omitempty"`
	DecidedWhy    *string    `json:"decided_why,omitempty"`
	EditedAt      *time.Time `json:"edited_at,omitempty"`
	Waits         bool       `json:"waits_for_route,omitempty"` // a retry of it was ordered, and waits

	id        uuid.UUID
	namespace string
}

func newLetter(v outboxdb.ListLettersRow) Letter {
	r := Letter{
		Key: operator.KeyText(v.Namespace, v.LetterID), Slot: v.Slot, State: v.State, AggregateType: v.AggregateType,
		AggregateID: v.AggregateID,
		EventType:   v.EventType, CreatedAt: v.CreatedAt.UTC(), Seq: v.Seq, Position: v.Position, Class: v.ErrorClass,
		Error:    v.Error,
		Attempts: v.Attempts, Holds: v.Holds, FirstAt: v.FirstAt.UTC(), LastAt: v.LastAt.UTC(),
		ControlID: v.ControlID, DecidedBy: v.DecidedBy, DecidedWhy: v.DecidedWhy, EditedAt: v.EditedAt,
		Waits: v.Waits && (v.State == states.LetterOpen || v.State == states.LetterRetrying),
		id:    v.LetterID, namespace: v.Namespace,
	}
	if v.ReplayOf != nil {
		r.ReplayOf = operator.KeyText(v.Namespace, *v.ReplayOf)
	}
	return r
}

// Filter says which letters of relays are meant; those that wait where no state is
// named.
type Filter struct {
	operator.Selection
	Slot   string
	Class  string // of the error
	States []string
}

// query asks for at most so many letters.
func (f Filter) query(limit int) outboxdb.ListLettersParams {
	meant := f.States
	if len(meant) == 0 {
		meant = []string{states.LetterOpen, states.LetterRetrying}
	}
	return outboxdb.ListLettersParams{
		States: meant, Ids: f.IDs(), Namespace: f.Namespace, AggregateType: f.AggregateType, AggregateID: f.Aggregate,
		EventType:  f.EventType,
		ErrorClass: f.Class, FromTime: f.From, ToTime: f.To, Slot: f.Slot, RowLimit: int32(limit),
	}
}

// List is letters of relays, oldest first.
type List struct {
	Letters []Letter `json:"letters"`
	More    bool     `json:"more"` // than the limit
}

// Read lists at most so many letters of relays.
func Read(ctx context.Context, db *operator.Database, f Filter, limit int) (*List, error) {
	rows, err := outboxdb.New(db).ListLetters(ctx, f.query(limit+1)) // one more tells whether there are more
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", operator.Explain(err, migrations.Outbox))
	}
	report := &List{Letters: []Letter{}}
	for _, v := range rows {
		report.Letters = append(report.Letters, newLetter(v))
	}
	if len(report.Letters) > limit {
		report.Letters, report.More = report.Letters[:limit], true
	}
	return report, nil
}
