// Package outboxotel puts the trace context of OpenTelemetry into events.
//
// # Guarantee
//
// [Traceparent] is a pure function of the context. It starts no span, reads no
// global, and returns either what [outbox.Event.Validate] accepts or nothing.
//
// The package is apart from outbox, and a module of its own, so that a service without
// OpenTelemetry neither compiles nor sees it. It imports the API of OpenTelemetry and never its SDK. See
// docs/adr/0011-producing.md.
package outboxotel

import (
	"context"
	"encoding/hex"

	"go.opentelemetry.io/otel/trace"
)

// Traceparent returns the W3C trace context (version 00) of the span in ctx, for
// [outbox.Event.Traceparent], or "" when there is none. The span may be remote, and
// need not be sampled: the flag says so.
func Traceparent(ctx context.Context) string {
	span := trace.SpanContextFromContext(ctx)
	if !span.IsValid() {
		return ""
	}
	// Of the flags only those that Level 1 and 2 define are passed on.
	flags := byte(span.TraceFlags()) & 0x03
	return "00-" + span.TraceID().String() + "-" + span.SpanID().String() + "-" + hex.EncodeToString([]byte{flags})
}
