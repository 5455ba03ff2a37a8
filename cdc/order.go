package cdc

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// order holds the columns of replays and controls that the outbox lacks.
type order struct {
	id          uuid.UUID // replay_id or control_id
	letter      uuid.UUID
	kind        string // mode or action
	group       string
	topic       string
	reason      string
	requestedBy string
	payloadNull bool
}

// replay makes a replay of the tuple. A row that is not whole is not judged: its
// reader looks at the whole one.
func (t *tuple) replay(whole bool) *Replay {
	o := t.order
	r := &Replay{ID: o.id, Mode: o.kind, Group: o.group, Topic: o.topic, Reason: o.reason, RequestedBy: o.requestedBy}
	if whole {
		t.spoil(r.check())
	}
	return r
}

// control makes a control of the tuple.
func (t *tuple) control(whole bool) *Control {
	o, row := t.order, t.row
	c := &Control{
		ID: o.id, Action: o.kind, LetterID: o.letter,
		Namespace: row.Namespace, AggregateType: row.AggregateType, AggregateID: row.AggregateID,
		Payload: row.Payload, PayloadNull: o.payloadNull, Headers: row.Headers,
		Reason: o.reason, RequestedBy: o.requestedBy, TxID: row.TxID, Seq: row.Seq,
	}
	if whole {
		t.spoil(c.check())
	}
	return c
}

// check says what the table's own constraints say, which its owner can drop.
func (r *Replay) check() error {
	switch {
	case r.Mode != ModeRedeliver && r.Mode != ModeReprocess:
		return fmt.Errorf("column mode is %.40q, want %s or %s", r.Mode, ModeRedeliver, ModeReprocess)
	case r.Mode == ModeReprocess && r.Group == "":
		return fmt.Errorf("mode %s names no replay_group", r.Mode)
	case r.Mode == ModeRedeliver && r.Group != "":
		return fmt.Errorf("mode %s names a replay_group, which only %s has", r.Mode, ModeReprocess)
	}
	return nil
}

// check says what the table's own constraints say, and that the aggregate is
// named in full.
func (c *Control) check() error {
	ofLetter, ofAggregate := c.LetterID != uuid.Nil, c.AggregateID != nil
	switch {
	case c.Action != ActionRetry && c.Action != ActionDiscard && c.Action != ActionEdit:
		return fmt.Errorf("column action is %.40q, want %s, %s or %s", c.Action, ActionRetry, ActionDiscard, ActionEdit)
	case ofLetter == ofAggregate:
		return errors.New("it names not one thing: want letter_id, or else the aggregate")
	case ofAggregate && (c.Namespace == "" || c.AggregateType == ""):
		return errors.New("the aggregate has no namespace or no aggregate_type")
	case ofAggregate && c.Action == ActionEdit:
		return errors.New("an edit is of one letter, and no letter_id is there")
	case c.PayloadNull && c.Payload != nil:
		return errors.New("payload_null is true and a payload is there")
	}
	return nil
}
