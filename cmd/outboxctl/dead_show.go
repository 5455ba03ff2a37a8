package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/migrations"
)

// deadShowReport is the JSON answer of dead show: the letter in every slot that
// has it, and the operator's words about it.
type deadShowReport struct {
	Key     string        `json:"key"`
	Letters []wholeLetter `json:"letters"`
	Words   []wordOf      `json:"words"`
}

type wholeLetter struct {
	deadReport
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

// wordOf is one row of onceward.controls.
type wordOf struct {
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

func deadShow(c *cli.Context) error {
	key, err := readOneName(c)
	if err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	q := outboxdb.New(db)
	report := &deadShowReport{Key: key.String(), Letters: []wholeLetter{}, Words: []wordOf{}}
	rows, err := q.ReadLetter(c.Context, key.ID)
	if err != nil {
		return fmt.Errorf("dead show: %w", operator.Explain(err, migrations.Outbox))
	}
	for _, v := range rows {
		if key.Is(v.Namespace) {
			report.Letters = append(report.Letters, newWholeLetter(v, c.Bool("payload")))
		}
	}
	if len(report.Letters) > 0 {
		if err := report.readWords(c, q, key.ID); err != nil {
			return fmt.Errorf("dead show: %w", err)
		}
	}
	if err := answer(c, report, printDeadShow); err != nil {
		return err
	}
	if len(report.Letters) == 0 {
		return errWrong
	}
	return nil
}

func newWholeLetter(v outboxdb.ReadLetterRow, whole bool) wholeLetter {
	l := wholeLetter{
		deadReport: deadReport{
			Key: operator.KeyText(v.Namespace, v.LetterID), Slot: v.Slot, State: v.State, AggregateType: v.AggregateType, AggregateID: v.AggregateID,
			EventType: v.EventType, CreatedAt: v.CreatedAt.UTC(), Seq: v.Seq, Position: v.Position, Class: v.ErrorClass, Error: v.Error,
			Attempts: v.Attempts, Holds: v.Holds, FirstAt: v.FirstAt.UTC(), LastAt: v.LastAt.UTC(),
			ControlID: v.ControlID, DecidedBy: v.DecidedBy, DecidedWhy: v.DecidedWhy, EditedAt: v.EditedAt, namespace: v.Namespace,
			Waits: v.Waits && (v.State == states.LetterOpen || v.State == states.LetterRetrying),
		},
		ContentType: v.ContentType, Headers: v.Headers, Traceparent: v.Traceparent,
		EditedBy: v.EditedBy, EditedWhy: v.EditedWhy, ReplayMode: v.ReplayMode, ReplayGroup: v.ReplayGroup, Topic: v.Topic,
		Tombstone: v.Payload == nil, PayloadBytes: len(v.Payload), PayloadPreview: terminal.Preview(v.Payload, terminal.PreviewBytes),
	}
	if v.ReplayOf != nil {
		l.ReplayOf = operator.KeyText(v.Namespace, *v.ReplayOf)
	}
	if whole {
		l.Payload = v.Payload
	}
	return l
}

func (r *deadShowReport) readWords(c *cli.Context, q *outboxdb.Queries, id uuid.UUID) error {
	first := r.Letters[0]
	words, err := q.ControlsOfLetter(c.Context, outboxdb.ControlsOfLetterParams{
		LetterID: &id, Namespace: first.namespace, AggregateType: first.AggregateType, AggregateID: first.AggregateID,
	})
	for _, v := range words {
		w := wordOf{
			ID: v.ControlID, Action: v.Action, Aggregate: v.LetterID == nil, PayloadNull: v.PayloadNull, Headers: v.Headers != nil,
			Reason: v.Reason, RequestedBy: v.RequestedBy, RequestedAt: v.RequestedAt.UTC(),
		}
		if v.Payload != nil {
			n := len(v.Payload)
			w.Payload = &n
		}
		r.Words = append(r.Words, w)
	}
	return err
}

func printDeadShow(p *page, r *deadShowReport) {
	if len(r.Letters) == 0 {
		p.line("no dead letter has the key %s; `outboxctl show %s` tells where the event is", r.Key, r.Key)
		return
	}
	for i, v := range r.Letters {
		if i > 0 {
			p.line("")
		}
		printDeadLetter(p, v)
	}
	var words [][]string
	for _, v := range r.Words {
		what := v.Action
		if v.Aggregate {
			what += " aggregate"
		}
		words = append(words, []string{what, terminal.Stamp(&v.RequestedAt), v.RequestedBy, terminal.Preview([]byte(v.Reason), terminal.PreviewBytes)})
	}
	p.table([]string{"word", "asked at", "by", "reason"}, words)
	for _, v := range r.Letters {
		if v.Payload != nil {
			p.line("\npayload (%s):", v.Slot)
			p.payload(v.Payload)
		}
	}
}

func printDeadLetter(p *page, v wholeLetter) {
	payload := fmt.Sprintf("%s: %s", terminal.Size(int64(v.PayloadBytes)), v.PayloadPreview)
	if v.Tombstone {
		payload = "none (a tombstone)"
	}
	holds, edited, state := "", "", v.State
	if v.Waits {
		state += ", waits for its route: `outboxctl status` says why"
	}
	if v.Holds && (v.State == states.LetterOpen || v.State == states.LetterRetrying) {
		holds = "later events of the aggregate wait behind it"
	}
	if v.EditedAt != nil {
		edited = fmt.Sprintf("%s by %s: %s", terminal.Stamp(v.EditedAt), operator.Deref(v.EditedBy), terminal.Preview([]byte(operator.Deref(v.EditedWhy)), maxReason))
	}
	p.pairs(
		[2]string{"key", v.Key},
		[2]string{"replay of", v.ReplayOf},
		[2]string{"slot", v.Slot},
		[2]string{"state", state},
		[2]string{"why", v.Class + ": " + terminal.Preview([]byte(v.Error), 2000)},
		[2]string{"attempts", strconv.Itoa(int(v.Attempts))},
		[2]string{"parked", terminal.Stamp(&v.FirstAt)},
		[2]string{"last tried", terminal.Stamp(&v.LastAt)},
		[2]string{"position", v.Position},
		[2]string{"event type", terminal.Preview([]byte(v.EventType), terminal.PreviewBytes)},
		[2]string{"aggregate", terminal.Preview([]byte(v.AggregateType+" "+v.AggregateID), terminal.PreviewBytes)},
		[2]string{"written", terminal.Stamp(&v.CreatedAt)},
		[2]string{"seq", strconv.FormatInt(v.Seq, 10)},
		[2]string{"content type", terminal.Preview([]byte(v.ContentType), terminal.PreviewBytes)},
		[2]string{"headers", string(v.Headers)},
		[2]string{"payload", payload},
		[2]string{"holds", holds},
		[2]string{"edited", edited},
		[2]string{"decided by", operator.Deref(v.DecidedBy)},
		[2]string{"decided why", terminal.Preview([]byte(operator.Deref(v.DecidedWhy)), maxReason)},
	)
}
