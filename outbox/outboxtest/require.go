package outboxtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"

	"github.com/onceward/onceward/outbox"
)

// TB is what this package needs of a *testing.T or *testing.B.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	Context() context.Context
}

// RequireEnqueued ends the test unless got are the wanted events, all of them, in
// this order. What a test seldom knows may be left out of a wanted event: a zero Key
// stands for any key, an empty Traceparent for any, and an empty ContentType is
// [outbox.DefaultContentType], as everywhere. Payloads are compared as JSON values
// when the content type is JSON and both are valid, and byte by byte otherwise.
func RequireEnqueued(t TB, got []outbox.Event, want ...outbox.Event) {
	t.Helper()
	var faults []string
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			faults = append(faults, fmt.Sprintf("event %d is missing, want %s", i, show(&want[i])))
		case i >= len(want):
			faults = append(faults, fmt.Sprintf("event %d is not wanted: %s", i, show(&got[i])))
		default:
			for _, fault := range differences(&got[i], &want[i]) {
				faults = append(faults, fmt.Sprintf("event %d: %s", i, fault))
			}
		}
	}
	if len(faults) > 0 {
		t.Fatalf("outboxtest: %d events enqueued, %d wanted:\n  %s", len(got), len(want), strings.Join(faults, "\n  "))
	}
}

func differences(got, want *outbox.Event) (faults []string) {
	differ := func(field string, got, want any) {
		faults = append(faults, fmt.Sprintf("%s is %#v, want %#v", field, got, want))
	}
	for _, f := range []struct{ name, got, want string }{
		{"AggregateType", got.AggregateType, want.AggregateType},
		{"AggregateID", got.AggregateID, want.AggregateID},
		{"Type", got.Type, want.Type},
		{"ContentType", contentType(got), contentType(want)},
	} {
		if f.got != f.want {
			differ(f.name, f.got, f.want)
		}
	}
	if !want.Key.IsZero() && got.Key != want.Key {
		differ("Key", got.Key.String(), want.Key.String())
	}
	if want.Traceparent != "" && got.Traceparent != want.Traceparent {
		differ("Traceparent", got.Traceparent, want.Traceparent)
	}
	if !maps.Equal(got.Headers, want.Headers) {
		differ("Headers", got.Headers, want.Headers)
	}
	if !samePayload(got, want) {
		faults = append(faults, fmt.Sprintf("Payload is %s, want %s", showPayload(got.Payload), showPayload(want.Payload)))
	}
	return faults
}

func contentType(e *outbox.Event) string {
	if e.ContentType == "" {
		return outbox.DefaultContentType
	}
	return e.ContentType
}

func samePayload(got, want *outbox.Event) bool {
	if (got.Payload == nil) != (want.Payload == nil) {
		return false // a tombstone is not an empty value
	}
	if bytes.Equal(got.Payload, want.Payload) {
		return true
	}
	kind, _, _ := strings.Cut(contentType(want), ";")
	if kind != "application/json" && !strings.HasSuffix(kind, "+json") {
		return false
	}
	g, gotValid := decode(got.Payload)
	w, wantValid := decode(want.Payload)
	return gotValid && wantValid && reflect.DeepEqual(g, w)
}

// decode keeps numbers as they are written, so that large ones are not equal by
// rounding.
func decode(payload []byte) (value any, ok bool) {
	if !json.Valid(payload) {
		return nil, false
	}
	d := json.NewDecoder(bytes.NewReader(payload))
	d.UseNumber()
	err := d.Decode(&value)
	return value, err == nil
}

func show(e *outbox.Event) string {
	return fmt.Sprintf("%s of %s %q with payload %s", e.Type, e.AggregateType, e.AggregateID, showPayload(e.Payload))
}

// showPayload bounds what a failure prints: binary values are long and tell
// nobody anything.
func showPayload(payload []byte) string {
	const most = 500
	switch {
	case payload == nil:
		return "nil (a tombstone)"
	case len(payload) > most:
		return fmt.Sprintf("%q… (%d bytes)", payload[:most], len(payload))
	}
	return fmt.Sprintf("%q", payload)
}
