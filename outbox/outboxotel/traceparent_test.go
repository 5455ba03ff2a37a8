package outboxotel_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/outbox/outboxotel"
)

func within(traceID trace.TraceID, spanID trace.SpanID, flags byte) context.Context {
	return trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: traceID, SpanID: spanID, TraceFlags: trace.TraceFlags(flags), Remote: true,
	}))
}

func ExampleTraceparent() {
	ctx := within(trace.TraceID{0x4b, 15: 0x36}, trace.SpanID{7: 0xb7}, 1) // your middleware did this
	ev := outbox.Event{Type: "InvoicePaid", Traceparent: outboxotel.Traceparent(ctx)}
	fmt.Println(ev.Traceparent)
	// Output: 00-4b000000000000000000000000000036-00000000000000b7-01
}

func TestNoSpanIsNoTraceparent(t *testing.T) {
	require.Empty(t, outboxotel.Traceparent(t.Context()))
	require.Empty(t, outboxotel.Traceparent(within(trace.TraceID{}, trace.SpanID{1}, 1)))
	require.Empty(t, outboxotel.Traceparent(within(trace.TraceID{1}, trace.SpanID{}, 1)))
}

// Whatever is in the context, the event is not refused for it.
func TestEveryTraceparentIsAccepted(t *testing.T) {
	key, err := outbox.NewKey("shop")
	require.NoError(t, err)
	rapid.Check(t, func(t *rapid.T) {
		var traceID trace.TraceID
		var spanID trace.SpanID
		copy(traceID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "trace id"))
		copy(spanID[:], rapid.SliceOfN(rapid.Byte(), 8, 8).Draw(t, "span id"))
		flags := rapid.Byte().Draw(t, "flags")
		ev := outbox.Event{Key: key, AggregateType: "order", AggregateID: "1", Type: "OrderPaid"}
		ev.Traceparent = outboxotel.Traceparent(within(traceID, spanID, flags))
		require.NoError(t, ev.Validate(time.Now()))
		require.Equal(t, traceID.IsValid() && spanID.IsValid(), ev.Traceparent != "")
	})
}
