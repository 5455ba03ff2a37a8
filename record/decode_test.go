package record_test

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// headers makes record headers from alternating names and values.
func headers(pairs ...string) []record.Header {
	var hs []record.Header
	for i := 0; i < len(pairs); i += 2 {
		hs = append(hs, record.Header{Name: pairs[i], Value: []byte(pairs[i+1])})
	}
	return hs
}

func decode(key, value []byte, headers []record.Header) (record.Event, error) {
	return record.Decode(record.Record{Key: key, Value: value, Headers: headers})
}

func TestDecodeOnceward(t *testing.T) {
	hs := headers(
		"idempotency-key", someKey, "event-type", "OrderPaid", "aggregate-type", "order",
		"content-type", "application/json", "occurred-at", "2025-10-17T12:00:00.123456Z",
		"traceparent", "00-first", "position", "0/16B3748", "tenant", "a", "tenant", "b", "traceparent", "00-last",
	)
	ev, err := decode([]byte("order-1"), []byte("{}"), hs)
	require.NoError(t, err)
	require.Equal(t, record.Event{
		Key: mustKey(t, someKey), Type: "OrderPaid", AggregateType: "order", AggregateID: "order-1",
		Payload: []byte("{}"), ContentType: "application/json",
		OccurredAt:  time.Date(2025, 10, 17, 12, 0, 0, 123456000, time.UTC),
		Traceparent: "00-last", Position: "0/16B3748", Headers: map[string]string{"tenant": "b"},
	}, ev)
}

func TestDecodeCloudEvents(t *testing.T) {
	hs := headers(
		"ce_specversion", "1.0", "ce_id", someKey, "ce_source", "payments", "ce_type", "OrderPaid",
		"ce_time", "2025-10-17T14:00:00+02:00", "ce_subject", "order-1", "Content-Type", "text/plain", "tenant", "a",
	)
	ev, err := decode(nil, nil, hs)
	require.NoError(t, err)
	require.Equal(t, record.Event{
		Key: mustKey(t, someKey), Type: "OrderPaid", AggregateID: "order-1", ContentType: "text/plain",
		OccurredAt: time.Date(2025, 10, 17, 12, 0, 0, 0, time.UTC),
		Headers:    map[string]string{"tenant": "a"},
	}, ev)

	ev, err = decode([]byte("key wins"), nil, hs)
	require.NoError(t, err)
	require.Equal(t, "key wins", ev.AggregateID)
}

func TestDecodeDebezium(t *testing.T) {
	hs := headers(
		"id", someKey[9:], "eventType", "OrderPaid", "idempotency-key", someKey, "aggregate-type", "order",
		"content-type", "application/json", "occurred-at", "2025-10-17T12:00:00.123456Z", "position", "0/16B3748", "tenant", "a",
	)
	ev, err := decode([]byte("order-1"), []byte("{}"), hs)
	require.NoError(t, err)
	require.Equal(t, record.Event{
		Key: mustKey(t, someKey), Type: "OrderPaid", AggregateType: "order", AggregateID: "order-1",
		Payload: []byte("{}"), ContentType: "application/json",
		OccurredAt: time.Date(2025, 10, 17, 12, 0, 0, 123456000, time.UTC),
		Position:   "0/16B3748", Headers: map[string]string{"tenant": "a"},
	}, ev)
}

// The three styles of the relay, by the contract's golden records (the
// publisher's tests write them), say the same about an event.
func TestDecodeReadsEveryStyle(t *testing.T) {
	text, err := os.ReadFile("testdata/records.json")
	require.NoError(t, err)
	var styles map[string][][2]string
	require.NoError(t, json.Unmarshal(text, &styles))
	require.Len(t, styles, 3)
	for style, pairs := range styles {
		var hs []record.Header
		for _, pair := range pairs {
			hs = append(hs, record.Header{Name: pair[0], Value: []byte(pair[1])})
		}
		ev, err := decode([]byte("order-1"), []byte("{}"), hs)
		require.NoError(t, err, style)
		require.Equal(t, record.Event{
			Key: mustKey(t, "shop:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a"), Type: "OrderPaid", AggregateType: "order",
			AggregateID: "order-1", Payload: []byte("{}"), ContentType: "application/json",
			OccurredAt: time.Date(2026, 10, 1, 12, 30, 0, 123456000, time.UTC), Traceparent: "00-aa-bb-01", Position: "0/16B3748",
			ReplayID: uuid.MustParse("0199f3c4-7b1e-7000-8000-00000000000a"), ReplayMode: record.ReplayReprocess, ReplayGroup: "billing",
			RepairID: uuid.MustParse("0199f3c4-7b1e-7000-8000-00000000000b"),
			Headers:  map[string]string{"tenant": "acme", "z": "1"},
		}, ev, style)
	}
}

// Where a tracing library wrote its own traceparent, that one counts; where it
// was lost on the way, what the event began with.
func TestCloudEventsTraceparent(t *testing.T) {
	ce := []string{"ce_specversion", "1.0", "ce_id", someKey, "ce_source", "payments", "ce_type", "X", "ce_traceparent", "00-began"}
	ev, err := decode(nil, nil, headers(ce...))
	require.NoError(t, err)
	require.Equal(t, "00-began", ev.Traceparent)
	ev, err = decode(nil, nil, headers(append(ce, "traceparent", "00-hop")...))
	require.NoError(t, err)
	require.Equal(t, "00-hop", ev.Traceparent)
}

func TestDecodeReplay(t *testing.T) {
	id := uuid.MustParse("0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5b")
	base := headers("idempotency-key", someKey, "event-type", "OrderPaid")
	ev, err := decode(nil, nil, append(base,
		headers("replay-id", id.String(), "replay-mode", "reprocess", "replay-group", "billing")...))
	require.NoError(t, err)
	require.Equal(t, id, ev.ReplayID)
	require.Equal(t, record.ReplayReprocess, ev.ReplayMode)
	require.Equal(t, "billing", ev.ReplayGroup)

	ev, err = decode(nil, nil, append(base, headers("repair-id", id.String())...))
	require.NoError(t, err)
	require.Equal(t, id, ev.RepairID)
}

func TestTombstoneAndEmptyPayloadDiffer(t *testing.T) {
	hs := headers("idempotency-key", someKey, "event-type", "OrderPaid")
	tombstone, err := decode(nil, nil, hs)
	require.NoError(t, err)
	require.Nil(t, tombstone.Payload)
	empty, err := decode(nil, []byte{}, hs)
	require.NoError(t, err)
	require.NotNil(t, empty.Payload)
}

func TestDecodeRefuses(t *testing.T) {
	ok := func(extra ...string) []string {
		return append([]string{"idempotency-key", someKey, "event-type", "OrderPaid"}, extra...)
	}
	ce := func(extra ...string) []string { return append([]string{"ce_specversion", "1.0"}, extra...) }
	cases := map[string]struct {
		pairs  []string
		header string
		detail string
	}{
		"nothing":             {nil, "idempotency-key", "missing"},
		"debezium":            {[]string{"id", someKey[9:], "eventType", "OrderPaid"}, "idempotency-key", "missing"},
		"debezium, no id":     {[]string{"idempotency-key", someKey, "eventType", "X"}, "id", "missing"},
		"debezium, other id":  {[]string{"idempotency-key", someKey, "eventType", "X", "id", uuid.NewString()}, "id", "is not the UUID"},
		"debezium, no type":   {[]string{"idempotency-key", someKey, "eventType", "", "id", someKey[9:]}, "eventType", "empty"},
		"two keys":            {ok("idempotency-key", someKey), "idempotency-key", "2 times"},
		"empty key":           {[]string{"idempotency-key", "", "event-type", "X"}, "idempotency-key", "empty"},
		"bad key":             {[]string{"idempotency-key", "payments:42", "event-type", "X"}, "idempotency-key", "36 lower-case"},
		"version 4":           {[]string{"idempotency-key", "payments:0199f3c4-7b1e-4c3a-9a51-3f0c2d1e4b5a", "event-type", "X"}, "idempotency-key", "version 4"},
		"seconds, not millis": {[]string{"idempotency-key", "payments:00006704-7b1e-7c3a-9a51-3f0c2d1e4b5a", "event-type", "X"}, "idempotency-key", "before 2015"},
		"no type":             {[]string{"idempotency-key", someKey}, "event-type", "missing"},
		"two types":           {ok("event-type", "OrderPaid"), "event-type", "2 times"},
		"empty type":          {[]string{"idempotency-key", someKey, "event-type", ""}, "event-type", "empty"},
		"type with NUL":       {[]string{"idempotency-key", someKey, "event-type", "a\x00"}, "event-type", "NUL"},
		"type not UTF-8":      {[]string{"idempotency-key", someKey, "event-type", "\xff"}, "event-type", "UTF-8"},
		"long type":           {[]string{"idempotency-key", someKey, "event-type", strings.Repeat("x", 256)}, "event-type", "256 bytes long, at most 255"},
		"long ce_type":        {ce("ce_id", someKey, "ce_source", "payments", "ce_type", strings.Repeat("x", 256)), "ce_type", "at most 255"},
		"bad time":            {ok("occurred-at", "yesterday"), "occurred-at", "RFC 3339"},
		"two aggregate types": {ok("aggregate-type", "a", "aggregate-type", "a"), "aggregate-type", "2 times"},
		"unknown mode":        {ok("replay-id", uuid.NewString(), "replay-mode", "again"), "replay-mode", `"again"`},
		"replay without mode": {ok("replay-id", uuid.NewString()), "replay-id", "together"},
		"mode without replay": {ok("replay-mode", "redeliver"), "replay-id", "together"},
		"reprocess for none":  {ok("replay-id", uuid.NewString(), "replay-mode", "reprocess"), "replay-group", "only with it"},
		"bad repair":          {ok("repair-id", "1"), "repair-id", "UUID"},
		"ce version":          {[]string{"ce_specversion", "0.3", "ce_id", someKey, "ce_source", "payments", "ce_type", "X"}, "ce_specversion", "want 1.0"},
		"ce foreign source":   {ce("ce_id", someKey, "ce_source", "shop", "ce_type", "X"), "ce_source", `"shop"`},
		"ce without type":     {ce("ce_id", someKey, "ce_source", "payments"), "ce_type", "missing"},
		"ce foreign id":       {ce("ce_id", "42", "ce_source", "payments", "ce_type", "X"), "ce_id", "colon"},
		"ce of another":       {ce("ce_id", "42", "ce_source", "/shop", "ce_type", "X"), "ce_id", "is read by Config.Readers of package consumer, e.g. record.CloudEvents"},
		"of another":          {[]string{"id", "42"}, "idempotency-key", "is read by Config.Readers of package consumer, e.g. record.CloudEvents"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := decode([]byte("k"), []byte("v"), headers(c.pairs...))
			var me *record.MalformedError
			require.ErrorAs(t, err, &me)
			require.ErrorIs(t, err, record.ErrMalformed)
			require.Equal(t, c.header, me.Header)
			require.Contains(t, me.Error(), c.detail)
		})
	}
}

func TestMalformedKeyKeepsItsRule(t *testing.T) {
	_, err := decode(nil, nil, headers("idempotency-key", "Payments:x", "event-type", "X"))
	var ke *outbox.KeyError
	require.ErrorAs(t, err, &ke)
	require.Equal(t, outbox.RuleNamespace, ke.Rule)
}

// A key from the future is not malformed: that is for the consumer to judge.
func TestFutureKeyIsRead(t *testing.T) {
	_, err := decode(nil, nil, headers("idempotency-key", "p:ffffffff-ffff-7c3a-9a51-3f0c2d1e4b5a", "event-type", "X"))
	require.NoError(t, err)
}

// Whatever the headers, the result is an event that the claim can take or an
// error that says which header is wrong; and headers outside the contract
// never make the difference.
func TestDecodeIsTotal(t *testing.T) {
	names := []string{
		"idempotency-key", "event-type", "aggregate-type", "content-type", "Content-Type", "occurred-at", "traceparent", "position",
		"replay-id", "replay-mode", "replay-group", "repair-id", "ce_specversion", "ce_id", "ce_source", "ce_type", "ce_time", "ce_subject",
		"ce_aggregatetype", "ce_traceparent", "id", "eventType",
	}
	value := rapid.OneOf(
		rapid.SampledFrom([]string{someKey, "payments", "OrderPaid", "1.0", "2025-10-17T12:00:00Z", "redeliver", "reprocess", someKey[9:], ""}),
		rapid.String(),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
	)
	rapid.Check(t, func(t *rapid.T) {
		var hs []record.Header
		for range rapid.IntRange(0, 8).Draw(t, "n") {
			hs = append(hs, record.Header{Name: rapid.SampledFrom(names).Draw(t, "name"), Value: []byte(value.Draw(t, "value"))})
		}
		ev, err := decode([]byte("k"), []byte("v"), hs)
		if err != nil {
			var me *record.MalformedError
			require.ErrorAs(t, err, &me)
			require.NotEmpty(t, me.Header)
			require.NotEmpty(t, me.Detail)
		} else {
			require.False(t, ev.Key.IsZero())
			require.NotEmpty(t, ev.Type)
		}
		_, again := decode([]byte("k"), []byte("v"), append(hs, record.Header{Name: "user\x00", Value: []byte{0, 255}}))
		require.Equal(t, err == nil, again == nil)
	})
}

func FuzzDecode(f *testing.F) {
	f.Add("idempotency-key", someKey, "event-type", "OrderPaid", "occurred-at", "2025-10-17T12:00:00Z")
	f.Add("ce_id", someKey, "ce_type", "OrderPaid", "ce_source", "payments")
	f.Fuzz(func(t *testing.T, n1, v1, n2, v2, n3, v3 string) {
		_, err := decode([]byte("k"), nil, headers(n1, v1, n2, v2, n3, v3))
		if err != nil && !errors.Is(err, record.ErrMalformed) {
			t.Fatalf("error of another kind: %v", err)
		}
	})
}
