package letters

import (
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/outbox"
)

// Classes of letters, as dead_letters.error_class has them: why the event was
// not published.
const (
	ClassRecord  = "record"           // Kafka can never take the record
	ClassBadRow  = "bad-row"          // the row breaks the contract by itself
	ClassFollows = "parked-aggregate" // an older letter holds its aggregate
	classSkipped = "skipped"          // an operator's command ended it
	ClassRoute   = "route"            // the topic that a replay names cannot be used
)

// Texts that a letter keeps are cut to this many bytes.
const maxLetterText = 8 << 10

// Dead is an event, or a replay of one, that is not published and gets a
// letter.
type Dead struct {
	Row    *outbox.Row
	Replay *cdc.Replay   // nil: an event
	Commit pglogrepl.LSN // start of the commit record
	Class  string
	Cause  string // the error, for the operator
	// Holds parks the aggregate: its later events follow it into letters until
	// this one is decided upon. A replay never holds, nor does a row of which
	// the aggregate could not be read.
	Holds bool
}

// ID is the letter's: the event's, or the replay's.
func (c *Dead) ID() uuid.UUID {
	if c.Replay != nil {
		return c.Replay.ID
	}
	return c.Row.ID
}

// Parks reports whether its letter holds its aggregate.
func (c *Dead) Parks() bool {
	return c.Holds && c.Replay == nil && c.Row.AggregateType != "" && len(c.Row.AggregateID) > 0
}

// Size is what it costs in memory, in bytes.
func (c *Dead) Size() int {
	return 512 + len(c.Row.Payload) + len(c.Row.Headers) + len(c.Row.AggregateID) + len(c.Cause)
}

// insert is the letter as the table has it.
func (c *Dead) insert(slot, state string) outboxdb.InsertLetterParams {
	r := c.Row
	p := outboxdb.InsertLetterParams{
		Slot: slot, LetterID: c.ID(), Namespace: r.Namespace, AggregateType: r.AggregateType,
		AggregateID: string(r.AggregateID), EventType: r.Type,
		Payload: r.Payload, ContentType: r.ContentType, Headers: r.Headers, CreatedAt: r.CreatedAt, TxID: r.TxID,
		Seq:      r.Seq,
		Position: c.Commit.String(), ErrorClass: c.Class, Error: letterText(c.Cause), State: state, Holds: c.Parks(),
	}
	if r.Traceparent != nil {
		text := string(r.Traceparent)
		p.Traceparent = &text
	}
	if re := c.Replay; re != nil {
		p.ReplayOf, p.ReplayMode = &r.ID, &re.Mode
		p.ReplayGroup, p.Topic = filled(re.Group), filled(re.Topic)
	}
	return p
}

// Letter is one that a control has released: it is to be published now.
type Letter struct {
	ID     uuid.UUID
	Index  uint32        // its place among the letters of its control, from 0
	Commit pglogrepl.LSN // of the event, not of the control
	Row    *outbox.Row
	Replay *cdc.Replay // of a replay's letter: ID, Mode, Group and Topic; else nil
	Holds  bool
	// Bad says what the row lacks to be a record. Such a letter cannot be
	// published, only discarded: an edit reaches payload and headers.
	Bad error
}

func newLetter(r *outboxdb.ReadReleaseRow) (*Letter, error) {
	commit, err := ledger.ParseLSN(r.Position)
	if err != nil {
		return nil, fmt.Errorf("read letter %s: %w", r.LetterID, err)
	}
	l := &Letter{ID: r.LetterID, Index: uint32(*r.RetryIndex), Commit: commit, Holds: r.Holds, Row: &outbox.Row{
		ID: r.LetterID, Namespace: r.Namespace, AggregateType: r.AggregateType, AggregateID: []byte(r.AggregateID),
		Type:    r.EventType,
		Payload: r.Payload, ContentType: r.ContentType, Headers: r.Headers, CreatedAt: r.CreatedAt.UTC(), TxID: r.TxID,
		Seq: r.Seq,
	}}
	if r.Traceparent != nil {
		l.Row.Traceparent = []byte(*r.Traceparent)
	}
	if r.ReplayOf != nil {
		l.Row.ID = *r.ReplayOf
		l.Replay = &cdc.Replay{ID: r.LetterID, Mode: text(r.ReplayMode), Group: text(r.ReplayGroup),
			Topic: text(r.Topic)}
	}
	l.Bad = unfit(l.Row)
	return l, nil
}

// Key is how an operator names it.
func (l *Letter) Key() string { return l.Row.Namespace + ":" + l.ID.String() }

// unfit says what a row that was bad in the log still lacks.
func unfit(r *outbox.Row) error {
	for _, f := range []struct {
		column  string
		missing bool
	}{
		{"namespace", r.Namespace == ""},
		{"aggregate_type", r.AggregateType == ""},
		{"aggregate_id", len(r.AggregateID) == 0},
		{"event_type", r.Type == ""},
		{"created_at", r.CreatedAt.IsZero()},
	} {
		if f.missing {
			return fmt.Errorf("the letter has no usable %s, so that it cannot be published: discard it, and enqueue the event anew if it is needed", f.column)
		}
	}
	return nil
}

// aggregate is the unit that a letter holds.
type aggregate struct {
	namespace, kind, id string
}

func aggregateOf(r *outbox.Row) aggregate {
	return aggregate{r.Namespace, r.AggregateType, string(r.AggregateID)}
}

func (a aggregate) String() string {
	return fmt.Sprintf("%s/%s %q", a.namespace, a.kind, label.Short(a.id))
}

// letterText makes text of what the database takes, and shortens it.
func letterText(s string) string {
	s = strings.ReplaceAll(s, "\x00", "�")
	if len(s) > maxLetterText {
		s = s[:maxLetterText] + "…"
	}
	return strings.ToValidUTF8(s, "�")
}

func filled(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
