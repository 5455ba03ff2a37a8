package consumer_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

func header() *rapid.Generator[consumer.Header] {
	return rapid.Custom(func(t *rapid.T) consumer.Header {
		return consumer.Header{Name: oddText().Draw(t, "name"), Value: oddBytes().Draw(t, "value")}
	})
}

// oddText is any string, also one that no text column can hold, and one that
// looks like such a one when it is quoted.
func oddText() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.String(),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
		rapid.SampledFrom([]string{"", "idempotency-key", "a\x00", `"a\x00"`, `"`, `""`, "ü", "\xff"}),
	)
}

// oddBytes is null, empty, or anything.
func oddBytes() *rapid.Generator[[]byte] {
	return rapid.OneOf(rapid.Just([]byte(nil)), rapid.Just([]byte{}), rapid.SliceOf(rapid.Byte()))
}

// An event that a fence keeps comes back as it was, so that the recovery job
// makes the same request as the attempt that died.
func TestEventsComeBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ev := anyEvent(t)
		stored, err := consumer.EncodeEvent(ev)
		require.NoError(t, err)
		back, err := consumer.DecodeEvent(stored)
		require.NoError(t, err)
		require.Equal(t, ev, back)
		require.Equal(t, ev.Fingerprint(), back.Fingerprint())
	})
}

func anyEvent(t *rapid.T) consumer.Event {
	key, err := outbox.ExternalKey("shop", rapid.StringN(1, 20, -1).Draw(t, "external"), time.UnixMilli(rapid.Int64Range(1_420_070_400_000, 1_760_000_000_000).Draw(t, "time")))
	require.NoError(t, err)
	ev := consumer.Event{Event: record.Event{
		Key: key, Type: rapid.StringN(1, 20, -1).Draw(t, "type"),
		AggregateType: oddText().Draw(t, "aggregate type"), AggregateID: string(oddBytes().Draw(t, "aggregate")), Payload: oddBytes().Draw(t, "payload"),
		ContentType: oddText().Draw(t, "content type"), Traceparent: oddText().Draw(t, "traceparent"), Position: oddText().Draw(t, "position"),
	}}
	if rapid.Bool().Draw(t, "from a record") {
		ev.Source = consumer.Source{Topic: "orders", Partition: rapid.Int32().Draw(t, "partition"), Offset: rapid.Int64().Draw(t, "offset")}
		ev.RecordHeaders = rapid.SliceOf(header()).Draw(t, "headers")
		ev.OccurredAt = time.UnixMicro(rapid.Int64Range(1, 1<<52).Draw(t, "occurred")).UTC()
		ev.Headers = rapid.MapOfN(oddText(), oddText(), 1, 5).Draw(t, "own headers")
	}
	if rapid.Bool().Draw(t, "a replay") {
		ev.ReplayID, ev.ReplayMode, ev.ReplayGroup = uuid.New(), record.ReplayReprocess, oddText().Draw(t, "group")
		ev.RepairID = uuid.New()
	}
	return ev
}
