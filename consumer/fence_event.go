package consumer

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// storedEvent is an event in onceward.fences, from which the recovery job makes
// it again. Type is read by its query.
type storedEvent struct {
	Key           string        `json:"key"`
	Type          string        `json:"type"`
	AggregateType raw           `json:"aggregate_type,omitempty"`
	AggregateID   []byte        `json:"aggregate_id"`
	Payload       []byte        `json:"payload"`
	ContentType   raw           `json:"content_type,omitempty"`
	OccurredAt    time.Time     `json:"occurred_at,omitzero"`
	Traceparent   raw           `json:"traceparent,omitempty"`
	Position      raw           `json:"position,omitempty"`
	ReplayID      uuid.UUID     `json:"replay_id,omitzero"`
	ReplayMode    raw           `json:"replay_mode,omitempty"`
	ReplayGroup   raw           `json:"replay_group,omitempty"`
	RepairID      uuid.UUID     `json:"repair_id,omitzero"`
	Source        storedSource  `json:"source,omitzero"`
	Record        *storedRecord `json:"record,omitempty"` // of a RecordReader
	Redriven      bool          `json:"redriven,omitempty"`
	// Of record.StoreHeaders.
	Headers       json.RawMessage `json:"headers,omitempty"`
	RecordHeaders json.RawMessage `json:"record_headers,omitempty"`
}

type storedRecord struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
}

type storedSource struct {
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	Offset    int64     `json:"offset"`
	TopicID   uuid.UUID `json:"topic_id,omitzero"`
}

// raw is a string that JSON or jsonb may not be able to hold: it is written in
// base64.
type raw string

// MarshalText implements encoding.TextMarshaler.
func (s raw) MarshalText() ([]byte, error) {
	return base64.StdEncoding.AppendEncode(nil, []byte(s)), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *raw) UnmarshalText(text []byte) error {
	b, err := base64.StdEncoding.AppendDecode(nil, text)
	*s = raw(b)
	return err
}

// encodeEvent writes an event as JSON. What a delivery says of itself, Late and
// Unprotected, is judged anew at the next.
func encodeEvent(ev Event) (stored []byte, err error) {
	s := storedEvent{
		Key: ev.Key.String(), Type: ev.Type, AggregateType: raw(ev.AggregateType), AggregateID: []byte(ev.AggregateID),
		Payload:     ev.Payload,
		ContentType: raw(ev.ContentType), OccurredAt: ev.OccurredAt, Traceparent: raw(ev.Traceparent),
		Position: raw(ev.Position),
		ReplayID: ev.ReplayID, ReplayMode: raw(ev.ReplayMode), ReplayGroup: raw(ev.ReplayGroup), RepairID: ev.RepairID,
		Source: storedSource(ev.Source), Redriven: ev.redriven,
	}
	if ev.raw != nil {
		s.Record = &storedRecord{ev.raw.Key, ev.raw.Value}
	}
	var own []Header
	for name, value := range ev.Headers {
		own = append(own, Header{Name: name, Value: []byte(value)})
	}
	if s.Headers, err = record.StoreHeaders(own); err != nil {
		return nil, err
	}
	if ev.RecordHeaders != nil {
		if s.RecordHeaders, err = record.StoreHeaders(ev.RecordHeaders); err != nil {
			return nil, err
		}
	}
	if stored, err = json.Marshal(s); err != nil {
		return nil, fmt.Errorf("encode the event: %w", err)
	}
	return stored, nil
}

// decodeEvent reads what encodeEvent has written.
func decodeEvent(stored []byte) (Event, error) {
	var s storedEvent
	if err := json.Unmarshal(stored, &s); err != nil {
		return Event{}, fmt.Errorf("decode the event: %w", err)
	}
	key, err := outbox.ParseKeyAt(s.Key, time.Time{}, outbox.NoSkewLimit)
	if err != nil {
		return Event{}, fmt.Errorf("decode the event: key: %w", err)
	}
	ev := Event{Event: record.Event{
		Key: key, Type: s.Type, AggregateType: string(s.AggregateType), AggregateID: string(s.AggregateID),
		Payload: s.Payload, ContentType: string(s.ContentType), OccurredAt: s.OccurredAt.UTC(),
		Traceparent: string(s.Traceparent), Position: string(s.Position),
		ReplayID: s.ReplayID, ReplayMode: record.ReplayMode(s.ReplayMode), ReplayGroup: string(s.ReplayGroup),
		RepairID: s.RepairID,
	}, Source: Source(s.Source), redriven: s.Redriven}
	if s.Record != nil {
		ev.raw = &Record{Key: s.Record.Key, Value: s.Record.Value}
	}
	own, err := record.LoadHeaders(s.Headers)
	if err != nil {
		return Event{}, err
	}
	for _, h := range own {
		if ev.Headers == nil {
			ev.Headers = make(map[string]string, len(own))
		}
		ev.Headers[h.Name] = string(h.Value)
	}
	if s.RecordHeaders != nil {
		ev.RecordHeaders, err = record.LoadHeaders(s.RecordHeaders)
	}
	return ev, err
}
