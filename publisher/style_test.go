package publisher_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/record"
)

// fullEvent has every field that becomes a header.
func fullEvent() publisher.Event {
	ev := event(1, "order-1", `{"total":5}`)
	ev.Row.Traceparent = []byte("00-aa-bb-01")
	ev.Row.Headers = []byte(`{"z": "1", "tenant": "acme"}`)
	ev.Replay = &record.Replay{ID: uuid.MustParse("0199f3c4-7b1e-7000-8000-00000000000a"), Mode: "reprocess", Group: "billing"}
	ev.RepairID = uuid.MustParse("0199f3c4-7b1e-7000-8000-00000000000b")
	return ev
}

// The records of all styles, as one can read them.
func TestGoldenStyles(t *testing.T) {
	const tail = `traceparent: 00-aa-bb-01
position: 0/16B3748
replay-id: 0199f3c4-7b1e-7000-8000-00000000000a
replay-mode: reprocess
replay-group: billing
repair-id: 0199f3c4-7b1e-7000-8000-00000000000b
tenant: acme
z: 1
`
	for style, want := range map[string]string{
		record.StyleOnceward: `key="order-1"
value="{\"total\":5}"
idempotency-key: shop:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a
event-type: OrderPaid
aggregate-type: order
content-type: application/json
occurred-at: 2026-10-01T12:30:00.123456Z
` + tail,
		record.StyleCloudEvents: `key="order-1"
value="{\"total\":5}"
ce_specversion: 1.0
ce_id: shop:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a
ce_source: shop
ce_type: OrderPaid
ce_time: 2026-10-01T12:30:00.123456Z
ce_subject: order-1
ce_aggregatetype: order
content-type: application/json
ce_traceparent: 00-aa-bb-01
` + tail,
		record.StyleDebezium: `key="order-1"
value="{\"total\":5}"
id: 0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a
eventType: OrderPaid
idempotency-key: shop:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a
aggregate-type: order
content-type: application/json
occurred-at: 2026-10-01T12:30:00.123456Z
` + tail,
	} {
		message, err := publisher.BuildStyled(fullEvent(), style)
		require.NoError(t, err)
		require.Equal(t, want, dump(t, message), style)
	}
}

// An attribute of a CloudEvent is not empty, and one without data is a
// tombstone.
func TestCloudEventsLeavesOutWhatIsEmpty(t *testing.T) {
	ev := event(1, "", "")
	ev.Row.Payload, ev.Row.ContentType, ev.Row.AggregateType, ev.Position = nil, "", "", ""
	message, err := publisher.BuildStyled(ev, record.StyleCloudEvents)
	require.NoError(t, err)
	require.Nil(t, message.Value)
	var names []string
	for _, h := range message.Headers {
		require.NotEmpty(t, h.Value)
		names = append(names, string(h.Key))
	}
	require.Equal(t, []string{"ce_specversion", "ce_id", "ce_source", "ce_type", "ce_time"}, names)
	parsed, err := time.Parse(time.RFC3339Nano, string(message.Headers[4].Value))
	require.NoError(t, err)
	require.True(t, parsed.Equal(ev.Row.CreatedAt))
}

// A content type that says "the payload is a CloudEvent" would make a receiver
// take the payload's own id. Other styles have no such reading.
func TestStructuredPayloadIsNoCloudEvent(t *testing.T) {
	ev := event(1, "a", "{}")
	ev.Row.ContentType = "Application/CloudEvents+json; charset=UTF-8"
	_, err := publisher.BuildStyled(ev, record.StyleCloudEvents)
	require.ErrorIs(t, err, publisher.ErrRecord)
	require.ErrorContains(t, err, "content_type")
	for _, style := range []string{record.StyleOnceward, record.StyleDebezium} {
		_, err := publisher.BuildStyled(ev, style)
		require.NoError(t, err)
	}
}

func TestReplaysThatConsumersWouldRefuse(t *testing.T) {
	id := uuid.MustParse("0199f3c4-7b1e-7000-8000-00000000000a")
	for want, replay := range map[string]record.Replay{
		"replay_mode": {ID: id, Mode: "again"},
		"replay_id: replay-id and replay-mode come together": {ID: id},
		"replay_group: goes with reprocess":                  {ID: id, Mode: "reprocess"},
		"replay_group: goes with reprocess, ":                {ID: id, Mode: "redeliver", Group: "billing"},
		"replay_id":                                          {Mode: "redeliver"},
		"replay_mode: a replay has an id and a mode":         {},
	} {
		ev := event(1, "a", "")
		ev.Replay = &replay
		_, err := publisher.BuildMessage(ev)
		require.ErrorIs(t, err, publisher.ErrRecord)
		require.ErrorContains(t, err, want)
	}
}
