package relay

import (
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/printed"
	"github.com/onceward/onceward/outbox"
)

// Classes of letters, as dead_letters.error_class has them: why the event was
// not published.
const (
	classRecord  = "record"           // Kafka can never take the record
	classBadRow  = "bad-row"          // the row breaks the contract by itself
	classFollows = "parked-aggregate" // an older letter holds its aggregate
	classSkipped = "skipped"          // an operator's word ended it
	classRoute   = "route"            // the topic that a replay names cannot be used
)

// Texts that a letter keeps are cut to this many bytes.
const maxLetterText = 8 << 10

// casualty is an event, or a replay of one, that is not published and gets a
// letter.
type casualty struct {
	row    *outbox.Row
	replay *cdc.Replay   // nil: an event
	commit pglogrepl.LSN // start of the commit record
	class  string
	cause  string // the error, for the operator
	// holds parks the aggregate: its later events follow it into letters until
	// this one is decided upon. A replay never holds, nor does a row of which
	// the aggregate could not be read.
	holds bool
}

// id is the letter's: the event's, or the replay's.
func (c *casualty) id() uuid.UUID {
	if c.replay != nil {
		return c.replay.ID
	}
	return c.row.ID
}

func (c *casualty) parks() bool {
	return c.holds && c.replay == nil && c.row.AggregateType != "" && len(c.row.AggregateID) > 0
}

// size is what it costs in memory, in bytes.
func (c *casualty) size() int {
	return 512 + len(c.row.Payload) + len(c.row.Headers) + len(c.row.AggregateID) + len(c.cause)
}

// insert is the letter as the table has it.
func (c *casualty) insert(slot, state string) outboxdb.InsertLetterParams {
	r := c.row
	p := outboxdb.InsertLetterParams{
		Slot: slot, LetterID: c.id(), Namespace: r.Namespace, AggregateType: r.AggregateType, AggregateID: string(r.AggregateID), EventType: r.Type,
		Payload: r.Payload, ContentType: r.ContentType, Headers: r.Headers, CreatedAt: r.CreatedAt, TxID: r.TxID, Seq: r.Seq,
		Position: c.commit.String(), ErrorClass: c.class, Error: letterText(c.cause), State: state, Holds: c.parks(),
	}
	if r.Traceparent != nil {
		text := string(r.Traceparent)
		p.Traceparent = &text
	}
	if re := c.replay; re != nil {
		p.ReplayOf, p.ReplayMode = &r.ID, &re.Mode
		p.ReplayGroup, p.Topic = filled(re.Group), filled(re.Topic)
	}
	return p
}

// letter is one that a control has released: it is to be published now.
type letter struct {
	id     uuid.UUID
	index  uint32        // its place among the letters of its control, from 0
	commit pglogrepl.LSN // of the event, not of the control
	row    *outbox.Row
	replay *cdc.Replay // of a replay's letter: ID, Mode, Group and Topic; else nil
	holds  bool
	// bad says what the row lacks to be a record. Such a letter cannot be
	// published, only discarded: an edit reaches payload and headers.
	bad error
}

func newLetter(r *outboxdb.ReadReleaseRow) (*letter, error) {
	commit, err := ledger.ParseLSN(r.Position)
	if err != nil {
		return nil, fmt.Errorf("read letter %s: %w", r.LetterID, err)
	}
	l := &letter{id: r.LetterID, index: uint32(*r.RetryIndex), commit: commit, holds: r.Holds, row: &outbox.Row{
		ID: r.LetterID, Namespace: r.Namespace, AggregateType: r.AggregateType, AggregateID: []byte(r.AggregateID), Type: r.EventType,
		Payload: r.Payload, ContentType: r.ContentType, Headers: r.Headers, CreatedAt: r.CreatedAt.UTC(), TxID: r.TxID, Seq: r.Seq,
	}}
	if r.Traceparent != nil {
		l.row.Traceparent = []byte(*r.Traceparent)
	}
	if r.ReplayOf != nil {
		l.row.ID = *r.ReplayOf
		l.replay = &cdc.Replay{ID: r.LetterID, Mode: text(r.ReplayMode), Group: text(r.ReplayGroup), Topic: text(r.Topic)}
	}
	l.bad = unfit(l.row)
	return l, nil
}

// key is how an operator names it.
func (l *letter) key() string { return l.row.Namespace + ":" + l.id.String() }

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
	return fmt.Sprintf("%s/%s %q", a.namespace, a.kind, printed.Short(a.id))
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
