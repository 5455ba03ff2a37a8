package record

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/onceward/onceward/outbox"
)

// Copy is one publishing of a row.
type Copy struct {
	Row      *outbox.Row
	Position string    // of header position; no header when empty
	Replay   Replay    // zero: it is no replay
	RepairID uuid.UUID // zero: it is no repair of a gap
}

// AppendHeaders appends the headers of a copy in one of the styles: those of the
// contract in its order, and the user's behind them. It is pure: one copy gives the same
// bytes. It allocates one buffer for the texts, and headers only if it has too little
// room; what the row holds as bytes is not copied. The record's key is the row's aggregate
// id, its value the payload.
//
// The error is a [*RowError]: of a row, or a replay, whose record a consumer would refuse.
func AppendHeaders[H Bytes](headers []H, c Copy, style string) ([]H, error) {
	if err := c.check(style); err != nil {
		return nil, err
	}
	headers = contractHeaders(headers, c, style)
	if c.Row.Headers == nil {
		return headers, nil
	}
	return appendUserHeaders(headers, c.Row.Headers)
}

// keyText is the length of an idempotency key behind its namespace.
const keyText = 1 + 36

// headerWriter appends headers whose texts share one buffer. When the buffer
// was measured too small it grows, and the headers so far keep the old one.
type headerWriter[H Bytes] struct {
	headers []H
	text    []byte
}

func (w *headerWriter[H]) bytes(name, value []byte) {
	w.headers = append(w.headers, H(pair{name, value}))
}

func (w *headerWriter[H]) string(name []byte, value string) {
	start := len(w.text)
	w.text = append(w.text, value...)
	w.bytes(name, w.since(start))
}

func (w *headerWriter[H]) uuid(name []byte, id uuid.UUID) {
	start := len(w.text)
	w.text = appendUUID(w.text, id)
	w.bytes(name, w.since(start))
}

func (w *headerWriter[H]) createdAt(name []byte, row *outbox.Row) {
	start := len(w.text)
	w.text = row.CreatedAt.UTC().AppendFormat(w.text, OccurredAtLayout)
	w.bytes(name, w.since(start))
}

// since returns the text from start on, without room to append to.
func (w *headerWriter[H]) since(start int) []byte { return w.text[start:len(w.text):len(w.text)] }

// key appends the idempotency key's text and returns it.
func (w *headerWriter[H]) key(row *outbox.Row) []byte {
	start := len(w.text)
	w.text = append(append(w.text, row.Namespace...), ':')
	w.text = appendUUID(w.text, row.ID)
	return w.since(start)
}

// contractHeaders appends the headers of the contract.
func contractHeaders[H Bytes](headers []H, c Copy, style string) []H {
	row := c.Row
	w := headerWriter[H]{headers: headers, text: make([]byte, 0, c.textSize())}
	switch style {
	case StyleCloudEvents:
		w.cloudEvents(row)
	case StyleDebezium:
		key := w.key(row)
		w.bytes(nameDebeziumID, key[len(row.Namespace)+1:])
		w.string(nameDebeziumType, row.Type)
		w.bytes(nameKey, key)
		w.onceward(row)
	default:
		w.bytes(nameKey, w.key(row))
		w.string(nameEventType, row.Type)
		w.onceward(row)
	}
	if row.Traceparent != nil {
		w.bytes(nameTraceparent, row.Traceparent)
	}
	if c.Position != "" {
		w.string(namePosition, c.Position)
	}
	w.copied(c)
	return w.headers
}

// textSize is how many bytes of text the headers take in the style that takes most.
func (c Copy) textSize() int {
	row := c.Row
	n := len(row.Namespace) + keyText + len(row.Type) + len(row.AggregateType) + len(row.ContentType) +
		len(OccurredAtLayout) + len(c.Position)
	if c.Replay.ID != uuid.Nil {
		n += keyText + len(c.Replay.Mode) + len(c.Replay.Group)
	}
	if c.RepairID != uuid.Nil {
		n += keyText
	}
	return n
}

// onceward writes what the styles onceward and debezium have in common.
func (w *headerWriter[H]) onceward(row *outbox.Row) {
	w.string(nameAggregateType, row.AggregateType)
	w.string(nameContentType, row.ContentType)
	w.createdAt(nameOccurredAt, row)
}

// cloudEvents writes the attributes, each with the prefix ce_, but for the
// content type, which the binding maps to a header of its own.
func (w *headerWriter[H]) cloudEvents(row *outbox.Row) {
	w.bytes(nameCESpecVersion, ceSpecVersion)
	key := w.key(row)
	w.bytes(nameCEID, key)
	w.bytes(nameCESource, key[:len(row.Namespace):len(row.Namespace)])
	w.string(nameCEType, row.Type)
	w.createdAt(nameCETime, row)
	if len(row.AggregateID) > 0 { // an attribute is not empty
		w.bytes(nameCESubject, row.AggregateID)
	}
	if row.AggregateType != "" {
		w.string(nameCEAggregateType, row.AggregateType)
	}
	if row.ContentType != "" {
		w.string(nameContentType, row.ContentType)
	}
	if row.Traceparent != nil {
		w.bytes(nameCETraceparent, row.Traceparent)
	}
}

// copied writes the headers of replays and repairs.
func (w *headerWriter[H]) copied(c Copy) {
	if replay := c.Replay; replay.ID != uuid.Nil {
		w.uuid(nameReplayID, replay.ID)
		w.string(nameReplayMode, string(replay.Mode))
		if replay.Group != "" {
			w.string(nameReplayGroup, replay.Group)
		}
	}
	if c.RepairID != uuid.Nil {
		w.uuid(nameRepairID, c.RepairID)
	}
}

// appendUUID appends the text form of a UUID.
func appendUUID(text []byte, id uuid.UUID) []byte {
	text = hex.AppendEncode(text, id[0:4])
	for _, group := range [...][2]int{{4, 6}, {6, 8}, {8, 10}, {10, 16}} {
		text = append(text, '-')
		text = hex.AppendEncode(text, id[group[0]:group[1]])
	}
	return text
}

// check refuses what no consumer could use: an id that is no key, as a writer that
// does not use Enqueue may have made it; a time that the header's layout cannot hold; a
// replay against its rules; and, as a CloudEvent, a payload whose content type says that
// it is a whole CloudEvent by itself: a receiver would take its attributes, and with them
// its id, in the place of ours.
func (c Copy) check(style string) error {
	row := c.Row
	if version := row.ID[6] >> 4; version != 7 && version != 8 || row.ID[8]>>6 != 0b10 {
		return &RowError{Field: "id", Detail: fmt.Sprintf("%s is no UUID of version 7 or 8; see the contract's idempotency key", row.ID)}
	}
	if year := row.CreatedAt.UTC().Year(); year < 0 || year > 9999 {
		return &RowError{Field: "created_at", Detail: fmt.Sprintf("year %d has no RFC 3339 form", year)}
	}
	if style == StyleCloudEvents && structured(row.ContentType) {
		return &RowError{
			Field:  "content_type",
			Detail: quoted([]byte(row.ContentType)) + " is CloudEvents' structured mode, in which the payload's own id would count; use another header style, or enqueue the bare data",
		}
	}
	if header, detail := c.Replay.flaw(); header != "" {
		return &RowError{Field: strings.ReplaceAll(header, "-", "_"), Detail: detail}
	}
	return nil
}

func structured(contentType string) bool {
	const prefix = "application/cloudevents"
	return len(contentType) >= len(prefix) && strings.EqualFold(contentType[:len(prefix)], prefix)
}
