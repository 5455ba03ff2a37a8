package cdc

import (
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/onceward/onceward/outbox"
)

// Kind says what an [Item] of the stream is.
type Kind uint8

const (
	// KindEvent is one committed row of the outbox.
	KindEvent Kind = iota + 1
	// KindCommit ends the transaction of the events before it.
	KindCommit
	// KindIdle is the end of the log between two transactions, as a keepalive
	// told it: everything before it was delivered.
	KindIdle
	// KindMarker is a marker that [EmitMarker] wrote: everything that committed
	// before it was written was delivered.
	KindMarker
	// KindAsk asks for a published snapshot: retention waits for one.
	KindAsk
)

// Item is one step of the stream, in commit order.
type Item struct {
	Kind       Kind
	Row        *outbox.Row   // KindEvent
	Commit     pglogrepl.LSN // KindEvent and KindCommit: start of the commit record
	End        pglogrepl.LSN // KindCommit: commit end; KindIdle: end of the log
	CommitTime time.Time     // KindEvent and KindCommit: by the server's clock
	Marker     Marker        // KindMarker
}

// itemOverhead is what an item costs beside the bytes of its row: the Item, the
// Row and the slice headers, rounded up.
const itemOverhead = 320

// size is the weight of the item in the queue, in bytes.
func (it *Item) size() int {
	if it.Row == nil {
		return itemOverhead
	}
	r := it.Row
	return itemOverhead + len(r.AggregateID) + len(r.Payload) + len(r.Headers) + len(r.Traceparent)
}
