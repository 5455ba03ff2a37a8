package letters

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/migrations"
)

// Shown is the letter in every slot that has it, and the commands about it.
type Shown struct {
	Key      string        `json:"key"`
	Letters  []WholeLetter `json:"letters"`
	Commands []Command     `json:"words"`
	Next     []string      `json:"next"` // commands that do something about it; they may be a choice
}

// Next are the commands about a letter in a state; key names it.
func Next(key, state string) []string {
	switch state {
	case states.LetterOpen:
		return []string{"outboxctl dead show " + key, "outboxctl dead retry " + key + " --reason \"…\"",
			"outboxctl dead edit " + key + " --payload-file FILE --reason \"…\"", "outboxctl dead discard " + key + " --reason \"…\""}
	case states.LetterDiscarded:
		return []string{"outboxctl replay --dead " + key + " --config relay.yaml --reason \"…\""}
	}
	return []string{}
}

// WholeLetter is a letter with its content.
type WholeLetter struct {
	Letter
	ReplayMode     *string         `json:"replay_mode,omitempty"` // of a replay's letter, as are the next two
	ReplayGroup    *string         `json:"replay_group,omitempty"`
	Topic          *string         `json:"topic,omitempty"`
	EditedBy       *string         `json:"edited_by,omitempty"`
	EditedWhy      *string         `json:"edited_why,omitempty"`
	ContentType    string          `json:"content_type"`
	Headers        json.RawMessage `json:"headers,omitempty"`
	Traceparent    *string         `json:"traceparent,omitempty"`
	Tombstone      bool            `json:"tombstone"`
	PayloadBytes   int             `json:"payload_bytes"`
	PayloadPreview string          `json:"payload_preview"`
	Payload        []byte          `json:"payload,omitempty"`
}

// Command is one row of onceward.controls.
type Command struct {
	ID          uuid.UUID `json:"control_id"`
	Action      string    `json:"action"`
	Aggregate   bool      `json:"whole_aggregate"`
	Payload     *int      `json:"new_payload_bytes,omitempty"`
	PayloadNull bool      `json:"payload_removed"`
	Headers     bool      `json:"new_headers"`
	Reason      string    `json:"reason"`
	RequestedBy string    `json:"requested_by"`
	RequestedAt time.Time `json:"requested_at"`
}

// Show reads the letter of an event or of a replay, with its payload where it is
// wanted whole.
func Show(ctx context.Context, db *operator.Database, key operator.Name, whole bool) (*Shown, error) {
	q := outboxdb.New(db)
	report := &Shown{Key: key.String(), Letters: []WholeLetter{}, Commands: []Command{}, Next: []string{}}
	rows, err := q.ReadLetter(ctx, key.ID)
	if err != nil {
		return nil, operator.Explain(err, migrations.Outbox)
	}
	for _, v := range rows {
		if key.Is(v.Namespace) {
			report.Letters = append(report.Letters, newWholeLetter(v, whole))
		}
	}
	if len(report.Letters) == 0 {
		return report, nil
	}
	for _, l := range report.Letters {
		if l.State == states.LetterDiscarded && l.ReplayOf != "" {
			continue // another replay of the event is another order
		}
		for _, command := range Next(l.Key, l.State) {
			if !slices.Contains(report.Next, command) && command != "outboxctl dead show "+l.Key { // this is it
				report.Next = append(report.Next, command)
			}
		}
	}
	return report, report.readCommands(ctx, q, key.ID)
}

func newWholeLetter(v outboxdb.ReadLetterRow, whole bool) WholeLetter {
	l := WholeLetter{
		Letter: Letter{
			Key: operator.KeyText(v.Namespace, v.LetterID), Slot: v.Slot, State: v.State,
			AggregateType: v.AggregateType, AggregateID: v.AggregateID,
			EventType: v.EventType, CreatedAt: v.CreatedAt.UTC(), Seq: v.Seq, Position: v.Position, Class: v.ErrorClass,
			Error:    v.Error,
			Attempts: v.Attempts, Holds: v.Holds, FirstAt: v.FirstAt.UTC(), LastAt: v.LastAt.UTC(),
			ControlID: v.ControlID, DecidedBy: v.DecidedBy, DecidedWhy: v.DecidedWhy, EditedAt: v.EditedAt,
			namespace: v.Namespace,
			Waits:     v.Waits && (v.State == states.LetterOpen || v.State == states.LetterRetrying),
		},
		ContentType: v.ContentType, Headers: v.Headers, Traceparent: v.Traceparent,
		EditedBy: v.EditedBy, EditedWhy: v.EditedWhy, ReplayMode: v.ReplayMode, ReplayGroup: v.ReplayGroup,
		Topic:     v.Topic,
		Tombstone: v.Payload == nil, PayloadBytes: len(v.Payload),
		PayloadPreview: terminal.Preview(v.Payload, terminal.PreviewBytes),
	}
	if v.ReplayOf != nil {
		l.ReplayOf = operator.KeyText(v.Namespace, *v.ReplayOf)
	}
	if whole {
		l.Payload = v.Payload
	}
	return l
}

func (r *Shown) readCommands(ctx context.Context, q *outboxdb.Queries, id uuid.UUID) error {
	first := r.Letters[0]
	commands, err := q.ControlsOfLetter(ctx, outboxdb.ControlsOfLetterParams{
		LetterID: &id, Namespace: first.namespace, AggregateType: first.AggregateType, AggregateID: first.AggregateID,
	})
	for _, v := range commands {
		w := Command{
			ID: v.ControlID, Action: v.Action, Aggregate: v.LetterID == nil, PayloadNull: v.PayloadNull,
			Headers: v.Headers != nil,
			Reason:  v.Reason, RequestedBy: v.RequestedBy, RequestedAt: v.RequestedAt.UTC(),
		}
		if v.Payload != nil {
			n := len(v.Payload)
			w.Payload = &n
		}
		r.Commands = append(r.Commands, w)
	}
	return err
}

// Wrong tells that there is no such letter.
func (r *Shown) Wrong() bool { return len(r.Letters) == 0 }
