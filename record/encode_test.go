package record_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// pair is a header in a client's own type.
type pair struct{ Key, Value []byte }

var styles = []string{record.StyleOnceward, record.StyleCloudEvents, record.StyleDebezium}

func row(aggregate, payload string) *outbox.Row {
	return &outbox.Row{
		ID: uuid.MustParse("0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a"), Namespace: "shop", AggregateType: "order",
		AggregateID: []byte(aggregate), Type: "OrderPaid", Payload: []byte(payload), ContentType: "application/json",
		CreatedAt: time.Date(2026, 10, 1, 12, 30, 0, 123456000, time.UTC), TxID: 4711, Seq: 1,
	}
}

// encode is the record of a copy, as a consumer's client hands it over.
func encode(t require.TestingT, c record.Copy, style string) record.Record {
	pairs, err := record.AppendHeaders([]pair(nil), c, style)
	require.NoError(t, err)
	rec := record.Record{Key: c.Row.AggregateID, Value: c.Row.Payload}
	for _, p := range pairs {
		rec.Headers = append(rec.Headers, record.Header{Name: string(p.Key), Value: p.Value})
	}
	return rec
}

// back is the copy of which a record tells.
func back(t require.TestingT, rec record.Record) record.Copy {
	ev, err := record.Decode(rec)
	require.NoError(t, err)
	c := record.Copy{
		Row: &outbox.Row{
			ID: ev.Key.UUID(), Namespace: ev.Key.Namespace(), AggregateType: ev.AggregateType, AggregateID: []byte(ev.AggregateID), Type: ev.Type,
			Payload: ev.Payload, ContentType: ev.ContentType, CreatedAt: ev.OccurredAt,
		},
		Position: ev.Position, RepairID: ev.RepairID, Replay: record.Replay{ID: ev.ReplayID, Mode: ev.ReplayMode, Group: ev.ReplayGroup},
	}
	if ev.Traceparent != "" {
		c.Row.Traceparent = []byte(ev.Traceparent)
	}
	if ev.Headers != nil {
		c.Row.Headers, err = json.Marshal(ev.Headers)
		require.NoError(t, err)
	}
	return c
}

// The file by which consumers, in any language, can be tested: one event in each style, with
// every header of the contract.
func TestGoldenStylesAreInTheContract(t *testing.T) {
	text, err := os.ReadFile("testdata/records.json")
	require.NoError(t, err)
	var golden map[string][][2]string
	require.NoError(t, json.Unmarshal(text, &golden))
	require.Len(t, golden, len(styles))
	full := record.Copy{
		Row: row("order-1", `{"total":5}`), Position: "0/16B3748", RepairID: uuid.MustParse("0199f3c4-7b1e-7000-8000-00000000000b"),
		Replay: record.Replay{ID: uuid.MustParse("0199f3c4-7b1e-7000-8000-00000000000a"), Mode: record.ReplayReprocess, Group: "billing"},
	}
	full.Row.Traceparent, full.Row.Headers = []byte("00-aa-bb-01"), []byte(`{"z": "1", "tenant": "acme"}`)
	for style, want := range golden {
		var got [][2]string
		for _, h := range encode(t, full, style).Headers {
			got = append(got, [2]string{h.Name, string(h.Value)})
			require.Equal(t, h.Name != "tenant" && h.Name != "z", outbox.ReservedHeader(h.Name), "%s: only the user's are not reserved", h.Name)
		}
		require.Equal(t, want, got, style)
	}
}

// What a row says, in any style, is what its consumers read; and to write that again
// gives the same record.
func TestRecordsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { comesBack(t, anyCopy(t), rapid.SampledFrom(styles).Draw(t, "style")) })
}

func comesBack(t require.TestingT, c record.Copy, style string) {
	rec := encode(t, c, style)
	again := back(t, rec)
	require.Equal(t, rec, encode(t, again, style))
	want := *c.Row
	want.TxID, want.Seq, want.CreatedAt = 0, 0, want.CreatedAt.UTC()
	var wrote, read map[string]string
	if want.Headers != nil {
		require.NoError(t, json.Unmarshal(want.Headers, &wrote))
	}
	if again.Row.Headers != nil {
		require.NoError(t, json.Unmarshal(again.Row.Headers, &read))
	}
	require.Len(t, read, len(wrote))
	for name, value := range wrote {
		require.Equal(t, value, read[name])
	}
	want.Headers, again.Row.Headers = nil, nil
	require.Equal(t, want, *again.Row)
	require.Equal(t, record.Copy{Row: again.Row, Position: c.Position, Replay: c.Replay, RepairID: c.RepairID}, again)
}

// anyCopy is what the outbox takes, and a replay that keeps its rules.
func anyCopy(t *rapid.T) record.Copy {
	text := rapid.String().Filter(func(s string) bool { return !strings.ContainsRune(s, 0) })
	key, err := outbox.ExternalKey(
		rapid.StringMatching(`[a-z][a-z0-9._-]{0,62}`).Draw(t, "namespace"), "x"+text.Draw(t, "external"),
		time.UnixMilli(rapid.Int64Range(1_420_070_400_000, 1_760_000_000_000).Draw(t, "event time")))
	require.NoError(t, err)
	c := record.Copy{
		Row: &outbox.Row{
			ID: key.UUID(), Namespace: key.Namespace(), AggregateType: text.Draw(t, "aggregate type"), AggregateID: []byte(text.Draw(t, "aggregate")),
			Type:    rapid.StringN(1, 60, record.MaxType).Filter(func(s string) bool { return !strings.ContainsRune(s, 0) }).Draw(t, "type"),
			Payload: rapid.OneOf(rapid.Just([]byte(nil)), rapid.SliceOf(rapid.Byte())).Draw(t, "payload"), ContentType: rapid.SampledFrom([]string{"", "application/json", "text/plain; é"}).Draw(t, "content type"),
			CreatedAt: time.UnixMicro(rapid.Int64Range(0, 4e15).Draw(t, "created at")),
		},
		Position: rapid.SampledFrom([]string{"", "0/0", "FFFFFFFF/FFFFFFFF"}).Draw(t, "position"),
	}
	if rapid.Bool().Draw(t, "traced") {
		c.Row.Traceparent = []byte("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	}
	if rapid.Bool().Draw(t, "with headers") {
		own := rapid.MapOf(rapid.StringN(1, 20, -1).Filter(ownName), rapid.String()).Draw(t, "headers")
		c.Row.Headers, err = json.Marshal(own)
		require.NoError(t, err)
	}
	if rapid.Bool().Draw(t, "a replay") {
		c.Replay = record.Replay{ID: uuid.New(), Mode: record.ReplayRedeliver}
		if group := text.Draw(t, "group"); group != "" {
			c.Replay.Mode, c.Replay.Group = record.ReplayReprocess, group
		}
	}
	if rapid.Bool().Draw(t, "a repair") {
		c.RepairID = uuid.New()
	}
	return c
}

// ownName: one that is content-type in other letters counts as that.
func ownName(s string) bool {
	return utf8.ValidString(s) && !outbox.ReservedHeader(s) && !strings.EqualFold(s, record.HeaderContentType)
}

// Whatever headers a record has: what is read of it can be written in its style, and
// reads the same then.
func FuzzRoundTrip(f *testing.F) {
	key := "payments:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a"
	f.Add(uint8(0), key, "OrderPaid", "order", "application/json", "00-a", "0/1", "tenant", "acme", uint8(0), int64(1_760_000_000_000_000))
	f.Add(uint8(1), key, "OrderPaid", "", "", "", "", "x", "", uint8(1), int64(0))
	f.Add(uint8(2), key, "é", "order", "text/plain", "", "0/1", "ID", "\"\\", uint8(6), int64(-1))
	f.Fuzz(func(t *testing.T, style uint8, key, eventType, aggregate, contentType, trace, position, name, value string, copied uint8, at int64) {
		k, err := outbox.ParseKeyAt(key, time.Time{}, outbox.NoSkewLimit)
		if err != nil || !ownName(name) || name == "" || !utf8.ValidString(value) {
			return
		}
		c := record.Copy{Position: position, Row: &outbox.Row{
			ID: k.UUID(), Namespace: k.Namespace(), AggregateType: aggregate, AggregateID: []byte(aggregate), Type: eventType, ContentType: contentType,
			Payload: []byte(value), CreatedAt: time.UnixMicro(at).UTC(),
		}}
		if trace != "" {
			c.Row.Traceparent = []byte(trace)
		}
		c.Row.Headers, err = json.Marshal(map[string]string{name: value})
		require.NoError(t, err)
		if copied&1 != 0 {
			c.Replay = record.Replay{ID: k.UUID(), Mode: record.ReplayRedeliver}
		}
		if copied&2 != 0 {
			c.Replay = record.Replay{ID: k.UUID(), Mode: record.ReplayReprocess, Group: "g"}
		}
		if copied&4 != 0 {
			c.RepairID = k.UUID()
		}
		of := styles[int(style)%len(styles)]
		if _, err := record.AppendHeaders([]pair(nil), c, of); err != nil {
			return // it says why
		}
		if _, err := record.Decode(encode(t, c, of)); err != nil {
			require.ErrorIs(t, err, record.ErrMalformed) // of a row that the outbox does not take
			return
		}
		comesBack(t, c, of)
	})
}
