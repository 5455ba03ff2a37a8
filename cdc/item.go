package cdc

import (
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"

	"github.com/onceward/onceward/outbox"
)

// Kind says what an [Item] of the stream is.
type Kind uint8

const (
	// KindEvent is one committed row of the outbox.
	KindEvent Kind = iota + 1
	// KindCommit ends the transaction of the rows before it.
	KindCommit
	// KindIdle is the end of the log between two transactions, as a keepalive
	// told it: everything before it was delivered.
	KindIdle
	// KindMarker is a marker that [EmitMarker] wrote: everything that committed
	// before it was written was delivered.
	KindMarker
	// KindAsk asks for a published snapshot: retention waits for one.
	KindAsk
	// KindReplay is one committed row of onceward.replays: an event is to be
	// published again.
	KindReplay
	// KindControl is one committed row of onceward.controls: a word of the
	// operator about dead letters.
	KindControl
)

// Item is one step of the stream, in commit order. What stands between two
// commits is one transaction; a transaction is delivered whole or not at all.
type Item struct {
	Kind Kind
	// Row is the event. Of a replay it is the original event, but with the TxID
	// and the Seq of the replay's own row. Never nil for these two kinds.
	Row     *outbox.Row
	Replay  *Replay  // KindReplay: never nil there
	Control *Control // KindControl: never nil there
	// Bad says that this row breaks the contract by itself (it was forged, a
	// required value is NULL, a time cannot be written down), whatever the
	// relay does. What could be decoded is there; the row's own id always, or
	// zero where an owner dropped the primary key and wrote NULL.
	Bad error
	// Incomplete says that the table lacked a needed column, or had it with
	// another type, when the row was written. The row's own id and tx_id are
	// there; the rest is to be read from the table, once that is as it must be.
	// It is a [*LayoutError], and never set together with Bad.
	Incomplete error
	Commit     pglogrepl.LSN // everything inside a transaction, its commit included: start of the commit record
	End        pglogrepl.LSN // KindCommit: commit end; KindIdle: end of the log
	CommitTime time.Time     // rows and KindCommit: by the server's clock
	Marker     Marker        // KindMarker
}

// Values of [Replay.Mode].
const (
	// ModeRedeliver sends the event again under its own key: consumers that
	// have it take it for the duplicate that it is.
	ModeRedeliver = "redeliver"
	// ModeReprocess lets the consumers of one group handle it once more.
	ModeReprocess = "reprocess"
)

// Replay is what an operator asked for in a row of onceward.replays, beside the
// event itself.
type Replay struct {
	ID          uuid.UUID // replay_id: of the row, fresh for each event and request
	Mode        string    // ModeRedeliver or ModeReprocess
	Group       string    // the consumer group of ModeReprocess, else empty
	Topic       string    // empty: where the event's route leads
	Reason      string
	RequestedBy string
}

// Values of [Control.Action].
const (
	ActionRetry   = "retry"
	ActionDiscard = "discard"
	ActionEdit    = "edit" // of one letter, never of an aggregate
)

// Control is an operator's word about one dead letter, or about all of an
// aggregate: a row of onceward.controls.
type Control struct {
	ID     uuid.UUID
	Action string // ActionRetry, ActionDiscard or ActionEdit
	// LetterID is the one letter; zero: the word is about all letters of the
	// aggregate that the next three name.
	LetterID      uuid.UUID
	Namespace     string
	AggregateType string
	AggregateID   []byte // nil: the word is about one letter
	// Payload and Headers replace the letter's in an edit; nil leaves them as
	// they are, unless PayloadNull makes a tombstone of the event. A discard with
	// PayloadNull was said together with the word skip.
	Payload     []byte
	PayloadNull bool
	Headers     []byte // the text of the jsonb
	Reason      string
	RequestedBy string
	TxID        uint64 // xid8 of the transaction that wrote it
	Seq         int64  // order of the words
}

// What an item costs beside the bytes of its values, rounded up: the Item, the
// structs that it points to and the slack of their memory.
const (
	itemOverhead    = 384
	replayOverhead  = 128
	controlOverhead = 256
	badOverhead     = 512 // an error with its text
)

// size is the weight of the item in the queue, in bytes. Names are counted
// though most are shared between rows: one that is too long to be shared must
// not go uncounted.
func (it *Item) size() int {
	n := itemOverhead
	if r := it.Row; r != nil {
		n += len(r.AggregateID) + len(r.Payload) + len(r.Headers) + len(r.Traceparent) +
			len(r.Namespace) + len(r.AggregateType) + len(r.Type) + len(r.ContentType)
	}
	if r := it.Replay; r != nil {
		n += replayOverhead + len(r.Mode) + len(r.Group) + len(r.Topic) + len(r.Reason) + len(r.RequestedBy)
	}
	if c := it.Control; c != nil {
		n += controlOverhead + len(c.Action) + len(c.Namespace) + len(c.AggregateType) + len(c.AggregateID) +
			len(c.Payload) + len(c.Headers) + len(c.Reason) + len(c.RequestedBy)
	}
	if it.Bad != nil {
		n += badOverhead
	}
	return n
}
