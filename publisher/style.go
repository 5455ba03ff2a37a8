package publisher

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/IBM/sarama"
	"github.com/google/uuid"

	"github.com/onceward/onceward/outbox"
)

// Header styles, for [Config].HeaderStyle. All of them carry the whole event,
// so that a consumer finds the idempotency key in each.
const (
	// StyleOnceward is the contract's own.
	StyleOnceward = "onceward"
	// StyleCloudEvents is CloudEvents 1.0 by the Kafka protocol binding, binary
	// content mode. The trace context is written twice, as the distributed
	// tracing extension demands: ce_traceparent keeps the trace that the event
	// began in, and traceparent is what tracing libraries look for and replace.
	StyleCloudEvents = "cloudevents"
	// StyleDebezium is that of Debezium's Outbox Event Router: id and eventType
	// as it writes them, in front of the contract's own, which its consumers
	// ignore and ours need, because id has no namespace.
	StyleDebezium = "debezium"
)

// Names and fixed values as sarama wants them: a conversion would allocate.
var (
	nameKey           = []byte(outbox.HeaderKey)
	nameEventType     = []byte(outbox.HeaderEventType)
	nameAggregateType = []byte(outbox.HeaderAggregateType)
	nameContentType   = []byte(outbox.HeaderContentType)
	nameOccurredAt    = []byte(outbox.HeaderOccurredAt)
	nameTraceparent   = []byte(outbox.HeaderTraceparent)
	namePosition      = []byte(outbox.HeaderPosition)
	nameReplayID      = []byte(outbox.HeaderReplayID)
	nameReplayMode    = []byte(outbox.HeaderReplayMode)
	nameReplayGroup   = []byte(outbox.HeaderReplayGroup)
	nameRepairID      = []byte(outbox.HeaderRepairID)

	nameCESpecVersion   = []byte(outbox.HeaderCESpecVersion)
	nameCEID            = []byte(outbox.HeaderCEID)
	nameCESource        = []byte(outbox.HeaderCESource)
	nameCEType          = []byte(outbox.HeaderCEType)
	nameCETime          = []byte(outbox.HeaderCETime)
	nameCESubject       = []byte(outbox.HeaderCESubject)
	nameCEAggregateType = []byte(outbox.HeaderCEAggregateType)
	nameCETraceparent   = []byte(outbox.HeaderCETraceparent)
	ceSpecVersion       = []byte("1.0")

	nameDebeziumID   = []byte(outbox.HeaderDebeziumID)
	nameDebeziumType = []byte(outbox.HeaderDebeziumType)
)

// Modes of a replay, as the contract spells them.
const (
	modeRedeliver = "redeliver"
	modeReprocess = "reprocess"
)

// keyText is the length of an idempotency key behind its namespace.
const keyText = 1 + 36

// headerWriter appends headers whose texts share one buffer. When the buffer
// was measured too small it grows, and the headers so far keep the old one.
type headerWriter struct {
	headers []sarama.RecordHeader
	text    []byte
}

func (w *headerWriter) bytes(name, value []byte) {
	w.headers = append(w.headers, sarama.RecordHeader{Key: name, Value: value})
}

func (w *headerWriter) string(name []byte, value string) {
	start := len(w.text)
	w.text = append(w.text, value...)
	w.bytes(name, w.since(start))
}

func (w *headerWriter) uuid(name []byte, id uuid.UUID) {
	start := len(w.text)
	w.text = appendUUID(w.text, id)
	w.bytes(name, w.since(start))
}

func (w *headerWriter) createdAt(name []byte, row *outbox.Row) {
	start := len(w.text)
	w.text = row.CreatedAt.UTC().AppendFormat(w.text, outbox.OccurredAtLayout)
	w.bytes(name, w.since(start))
}

// since returns the text from start on, without room to append to.
func (w *headerWriter) since(start int) []byte { return w.text[start:len(w.text):len(w.text)] }

// key appends the idempotency key's text and returns it.
func (w *headerWriter) key(row *outbox.Row) []byte {
	start := len(w.text)
	w.text = append(append(w.text, row.Namespace...), ':')
	w.text = appendUUID(w.text, row.ID)
	return w.since(start)
}

// contractHeaders appends the headers of the contract in its order; the user's
// come behind them in every style. It is pure.
func contractHeaders(headers []sarama.RecordHeader, ev *Event, style string) []sarama.RecordHeader {
	row := ev.Row
	w := headerWriter{headers: headers, text: make([]byte, 0, textSize(ev))}
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
	if ev.Position != "" {
		w.string(namePosition, ev.Position)
	}
	w.copies(ev)
	return w.headers
}

// textSize is how many bytes of text the headers of an event take in the style
// that takes most.
func textSize(ev *Event) int {
	row := ev.Row
	n := len(row.Namespace) + keyText + len(row.Type) + len(row.AggregateType) + len(row.ContentType) +
		len(outbox.OccurredAtLayout) + len(ev.Position)
	if ev.Replay != nil {
		n += keyText + len(ev.Replay.Mode) + len(ev.Replay.Group)
	}
	if ev.RepairID != uuid.Nil {
		n += keyText
	}
	return n
}

// onceward writes what the styles onceward and debezium have in common.
func (w *headerWriter) onceward(row *outbox.Row) {
	w.string(nameAggregateType, row.AggregateType)
	w.string(nameContentType, row.ContentType)
	w.createdAt(nameOccurredAt, row)
}

// cloudEvents writes the attributes, each with the prefix ce_, but for the
// content type, which the binding maps to a header of its own.
func (w *headerWriter) cloudEvents(row *outbox.Row) {
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

// copies writes the headers of replays and repairs.
func (w *headerWriter) copies(ev *Event) {
	if replay := ev.Replay; replay != nil {
		w.uuid(nameReplayID, replay.ID)
		w.string(nameReplayMode, replay.Mode)
		if replay.Group != "" {
			w.string(nameReplayGroup, replay.Group)
		}
	}
	if ev.RepairID != uuid.Nil {
		w.uuid(nameRepairID, ev.RepairID)
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

// checkStyle refuses what the headers could not say: a replay that consumers
// would refuse, and, as a CloudEvent, a payload whose content type says that it
// is a whole CloudEvent by itself: a receiver would take its attributes, and
// with them its id, in the place of ours.
func checkStyle(ev *Event, style string) error {
	if style == StyleCloudEvents && structured(ev.Row.ContentType) {
		return &RecordError{
			Field:  "content_type",
			Detail: fmt.Sprintf("%q is CloudEvents' structured mode, in which the payload's own id would count; use another header style, or enqueue the bare data", clip(ev.Row.ContentType)),
		}
	}
	replay := ev.Replay
	if replay == nil {
		return nil
	}
	if replay.Mode != modeRedeliver && replay.Mode != modeReprocess {
		return &RecordError{Field: "replay_mode", Detail: fmt.Sprintf("%q, want redeliver or reprocess", clip(replay.Mode))}
	}
	if (replay.Mode == modeReprocess) != (replay.Group != "") {
		return &RecordError{Field: "replay_group", Detail: "goes with reprocess, and only with it"}
	}
	if replay.ID == uuid.Nil {
		return &RecordError{Field: "replay_id", Detail: "a replay needs an id"}
	}
	return nil
}

func structured(contentType string) bool {
	const prefix = "application/cloudevents"
	return len(contentType) >= len(prefix) && strings.EqualFold(contentType[:len(prefix)], prefix)
}
