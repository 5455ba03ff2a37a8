package outbox

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

func goodEvent() Event {
	return Event{Key: keyAt(noon, 7), AggregateType: "order", AggregateID: "o-1", Type: "OrderPaid", Payload: []byte(`{}`)}
}

func TestValidateNamesTheField(t *testing.T) {
	for want, spoil := range map[string]func(*Event){
		"Key: not set":         func(e *Event) { e.Key = Key{} },
		"AggregateType: empty": func(e *Event) { e.AggregateType = "" },
		"AggregateID: empty":   func(e *Event) { e.AggregateID = "" },
		"Type: empty":          func(e *Event) { e.Type = "" },
		"Type: not valid":      func(e *Event) { e.Type = "\xff" },
		"Type: holds the control character 0x1b at byte 1": func(e *Event) { e.Type = "a\x1b[31m" },
		"ContentType: holds the control character 0x0d":    func(e *Event) { e.ContentType = "text/plain\r\nX-Admin: true" },
		"AggregateID: holds":                               func(e *Event) { e.AggregateID = "a\x00b" },
		"ContentType: not":                                 func(e *Event) { e.ContentType = "\xff" },
		"AggregateType: 256 bytes long, at most 255":       func(e *Event) { e.AggregateType = strings.Repeat("a", 256) },
		"AggregateID: 4097 bytes long":                     func(e *Event) { e.AggregateID = strings.Repeat("a", 4097) },
		"Payload: 66060289 bytes long":                     func(e *Event) { e.Payload = make([]byte, MaxPayload+1) },
		"Headers: 65541 bytes":                             func(e *Event) { e.Headers = map[string]string{"large": strings.Repeat("v", 64<<10)} },
		"Traceparent: want version":                        func(e *Event) { e.Traceparent = "\x00" },
		`Headers["id"]`:                                    func(e *Event) { e.Headers = map[string]string{"id": "x"} },
		`Headers["ce_x"]`:                                  func(e *Event) { e.Headers = map[string]string{"ce_x": "x"} },
		`Headers[""]`:                                      func(e *Event) { e.Headers = map[string]string{"": "x"} },
		"encode binary":                                    func(e *Event) { e.Headers = map[string]string{"sig": "\xfe\xff"} },
		"name holds a NUL":                                 func(e *Event) { e.Headers = map[string]string{"a\x00": "x"} },
		"1 to 255 bytes":                                   func(e *Event) { e.Headers = map[string]string{strings.Repeat("n", 256): "x"} },
	} {
		ev := goodEvent()
		spoil(&ev)
		err := ev.Validate(noon)
		require.ErrorIs(t, err, ErrEvent, want)
		require.ErrorContains(t, err, want)
	}
	ev := goodEvent()
	require.NoError(t, ev.Validate(noon))
	ev.Payload, ev.Headers = nil, map[string]string{"tenant": "übung", "empty": ""}
	require.NoError(t, ev.Validate(noon), "a tombstone with headers")
}

func TestTraceparents(t *testing.T) {
	const good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for _, s := range []string{"", good, "cc" + good[2:], "cc" + good[2:] + "-more"} {
		require.NoError(t, checkTraceparent(s), s)
	}
	for s, want := range map[string]string{
		"00-4bf9":                 "want version-traceid",
		good[:54]:                 "want version-traceid",
		good + "-more":            "60 bytes",
		good[:54] + "G":           "not lower-case",
		good[:3] + "B" + good[4:]: "not lower-case",
		"ff" + good[2:]:           "ff is forbidden",
		"cc" + good[2:] + "more":  "59 bytes",
		"cc" + good[2:] + "-\x00": "holds a NUL",
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01": "trace id is zero",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01": "parent id is zero",
		"00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01": "want version-traceid",
	} {
		require.ErrorContains(t, checkTraceparent(s), want, s)
	}
}

func TestValidateJudgesTheEventTime(t *testing.T) {
	ev := goodEvent()
	require.ErrorIs(t, ev.Validate(noon.Add(-DefaultKeySkew-1)), ErrKey)
	ev.Key = Key{namespace: "pay", id: uuid.New()}
	require.ErrorIs(t, ev.Validate(noon), ErrKey)
}

func TestEveryHeaderOfTheContractIsReserved(t *testing.T) {
	for _, name := range []string{
		HeaderKey, "event-type", "aggregate-type", "content-type", "occurred-at", "traceparent",
		"position", "replay-id", "replay-mode", "replay-group", "repair-id", "id", "eventType", "ce_id",
	} {
		require.True(t, ReservedHeader(name), name)
	}
	require.False(t, ReservedHeader("tenant"))
	require.False(t, ReservedHeader("ce"))
}
