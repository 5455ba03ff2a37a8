package consumer_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

const someKey = "payments:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a"

func mustKey(t require.TestingT, s string) outbox.Key {
	k, err := outbox.ParseKey(s)
	require.NoError(t, err)
	return k
}

// headers makes record headers from alternating names and values.
func headers(pairs ...string) []consumer.Header {
	var hs []consumer.Header
	for i := 0; i < len(pairs); i += 2 {
		hs = append(hs, consumer.Header{Name: pairs[i], Value: []byte(pairs[i+1])})
	}
	return hs
}

// Keys of foreign events, computed by the algorithm of docs/contract.md in Python.
const (
	foreignID     = "5f3c8c5e-0d8e-4b55-9b0c-0f4f2d3e1a77"
	cloudKey      = "shop:01a20cff-7dfa-83b2-b241-961dac78bcc1" // of source and id below, at 10:00:00.250
	cloudTimeless = "shop:014aa2ca-b000-83b2-b241-961dac78bcc1"
	outboxKey     = "billing:01a20cff-7d7b-8097-8fe2-73dad0c1c27f" // of foreignID, at 10:00:00.123
	outboxNoTime  = "billing:014aa2ca-b000-8097-8fe2-73dad0c1c27f"
)

var orderTime = time.Date(2026, 11, 24, 10, 0, 0, 250e6, time.UTC)

// cloudEventRecords are records of one event, as the official SDKs write them: in
// Go, Java and Python, in both modes.
var cloudEventRecords = map[string]consumer.Record{
	"go, binary": {Key: []byte("o-1"), Value: []byte(`{"amount":10}`), Headers: headers(
		"ce_id", foreignID, "ce_source", "https://shop.example/orders", "ce_specversion", "1.0", "ce_type", "com.example.order.paid",
		"ce_time", "2026-11-24T10:00:00.25Z", "content-type", "application/json", "ce_tenant", "acme")},
	"java, binary": {Key: []byte("o-1"), Value: []byte(`{"amount":10}`), Headers: headers(
		"ce_specversion", "1.0", "ce_id", foreignID, "ce_source", "https://shop.example/orders", "ce_type", "com.example.order.paid",
		"content-type", "application/json", "ce_time", "2026-11-24T11:00:00.25+01:00", "ce_tenant", "acme")},
	"go, structured": {Key: []byte("o-1"), Headers: headers("content-type", "application/cloudevents+json"),
		Value: []byte(`{"specversion":"1.0","id":"` + foreignID + `","source":"https://shop.example/orders","type":"com.example.order.paid","datacontenttype":"application/json","time":"2026-11-24T10:00:00.25Z","data":{"amount":10},"tenant":"acme"}`)},
	"java, structured": {Key: []byte("o-1"), Headers: headers("content-type", "application/cloudevents+json; charset=UTF-8"),
		Value: []byte(`{"specversion":"1.0","id":"` + foreignID + `","source":"https://shop.example/orders","type":"com.example.order.paid","datacontenttype":"application/json","time":"2026-11-24T10:00:00.25Z","tenant":"acme","data":{"amount":10}}`)},
	"python, structured": {Key: []byte("o-1"), Headers: headers("content-type", "application/json"),
		Value: []byte(`{"specversion": "1.0", "id": "` + foreignID + `", "source": "https://shop.example/orders", "type": "com.example.order.paid", "time": "2026-11-24T10:00:00.250000+00:00", "tenant": "acme", "data": {"amount":10}}`)},
	"structured, in base64": {Key: []byte("o-1"), Headers: headers("Content-Type", "application/cloudevents+json"),
		Value: []byte(`{"specversion":"1.0","id":"` + foreignID + `","source":"https://shop.example/orders","type":"com.example.order.paid","datacontenttype":"application/json","time":"2026-11-24T10:00:00.25Z","data_base64":"eyJhbW91bnQiOjEwfQ==","tenant":"acme"}`)},
}

func parse(t *testing.T, rec consumer.Record, readers ...consumer.RecordReader) (consumer.Event, error) {
	t.Helper()
	p, err := consumer.Reading([]consumer.Class{{Pattern: "*", Window: time.Hour}, {Pattern: "NoTime*", Window: time.Hour, Keyed: consumer.ByArrival}}, readers...)
	require.NoError(t, err)
	rec.Source = consumer.Source{Topic: "orders", Partition: 2, Offset: 7}
	ev, err := p.Parse(rec)
	if err == nil {
		require.Equal(t, rec, consumer.RecordOf(ev), "a letter holds the record as it came")
		stored, err := consumer.EncodeEvent(ev)
		require.NoError(t, err)
		back, err := consumer.DecodeEvent(stored)
		require.NoError(t, err)
		require.Equal(t, rec, consumer.RecordOf(back), "also of an event that the recovery job has taken up")
	}
	return consumer.Bare(ev), err
}

func TestCloudEventsOfOthers(t *testing.T) {
	for name, rec := range cloudEventRecords {
		ev, err := parse(t, rec, record.CloudEvents{Namespace: "shop"}.Read)
		require.NoError(t, err, name)
		require.Equal(t, consumer.Event{Event: record.Event{
			Key: mustKeyAt(t, cloudKey), Type: "com.example.order.paid", AggregateID: "o-1", Payload: []byte(`{"amount":10}`),
			ContentType: "application/json", OccurredAt: orderTime, Headers: map[string]string{"ce_tenant": "acme"}},
			Source: consumer.Source{Topic: "orders", Partition: 2, Offset: 7}, RecordHeaders: rec.Headers,
		}, ev, name)
	}
}

func mustKeyAt(t *testing.T, s string) outbox.Key {
	t.Helper()
	k, err := outbox.ParseKeyAt(s, time.Time{}, outbox.NoSkewLimit)
	require.NoError(t, err)
	return k
}

func TestCloudEventsWithoutTime(t *testing.T) {
	rec := consumer.Record{Headers: headers("ce_id", foreignID, "ce_source", "https://shop.example/orders", "ce_specversion", "1.0", "ce_type", "NoTimePaid", "ce_subject", "o-1")}
	ev, err := parse(t, rec, record.CloudEvents{Namespace: "shop"}.Read)
	require.NoError(t, err)
	require.Equal(t, cloudTimeless, ev.Key.String())
	require.Equal(t, "o-1", ev.AggregateID)
	require.Nil(t, ev.Payload)

	rec.Headers = append(rec.Headers, headers("ce_time", "2026-11-24T10:00:00.25Z")...)
	ev, err = parse(t, rec, record.CloudEvents{Namespace: "shop", Timeless: true}.Read)
	require.NoError(t, err)
	require.Equal(t, cloudTimeless, ev.Key.String())

	rec.Headers[3].Value = []byte("Paid") // of a class by event time
	_, err = parse(t, rec, record.CloudEvents{Namespace: "shop", Timeless: true}.Read)
	require.ErrorIs(t, err, record.ErrMalformed)
	require.ErrorContains(t, err, "let a group whose class of it is Keyed: consumer.ByArrival from the beginning")
}

func TestCloudEventsData(t *testing.T) {
	for data, want := range map[string]string{
		`"data":"plain \u00e9","datacontenttype":"text/plain"`:     "plain é",
		`"data":"json","datacontenttype":"application/vnd.x+json"`: `"json"`,
		`"data":[1, 2]`: "[1, 2]",
		`"data":0`:      "0",
		`"data_base64":"AP8=","datacontenttype":"application/avro"`: "\x00\xff",
	} {
		rec := consumer.Record{Headers: headers("content-type", "application/cloudevents+json"),
			Value: []byte(`{"specversion":"1.0","id":"1","source":"/s","type":"T","time":"2026-11-24T10:00:00Z",` + data + `}`)}
		ev, err := parse(t, rec, record.CloudEvents{Namespace: "shop"}.Read)
		require.NoError(t, err, data)
		require.Equal(t, want, string(ev.Payload), data)
	}
	none := consumer.Record{Headers: headers("content-type", "application/cloudevents+json"),
		Value: []byte(`{"specversion":"1.0","id":"1","source":"/s","type":"T","time":"2026-11-24T10:00:00Z","data":null,"n":1,"b":true,"nil":null}`)}
	ev, err := parse(t, none, record.CloudEvents{Namespace: "shop"}.Read)
	require.NoError(t, err)
	require.Nil(t, ev.Payload)
	require.Equal(t, map[string]string{"ce_n": "1", "ce_b": "true"}, ev.Headers)
}

func TestMalformedCloudEvents(t *testing.T) {
	structured := headers("content-type", "application/cloudevents+json")
	whole := `{"specversion":"1.0","id":"1","source":"/s","type":"T","time":"2026-11-24T10:00:00Z"}`
	for value, want := range map[string]string{
		`no JSON`: "it is not",
		`[1]`:     "it is not",
		strings.Replace(whole, `"1.0"`, `"0.3"`, 1):              "want 1.0",
		strings.Replace(whole, `"id":"1",`, ``, 1):               "ce_id: missing",
		strings.Replace(whole, `"/s"`, `""`, 1):                  "ce_source: missing",
		strings.Replace(whole, `"/s"`, `"a b"`, 1):               "URI",
		strings.Replace(whole, `"T"`, `{}`, 1):                   "ce_type: is an object",
		strings.Replace(whole, `"T"`, `"\u0000"`, 1):             "NUL",
		strings.Replace(whole, `2026-11-24T`, `2026`, 1):         "RFC 3339",
		strings.Replace(whole, `2026-11`, `1999-11`, 1):          "before 2015",
		whole[:len(whole)-1] + `,"data":1,"data_base64":"AP8="}`: "both",
		whole[:len(whole)-1] + `,"data_base64":"not in base64"}`: "base64",
	} {
		_, err := parse(t, consumer.Record{Headers: structured, Value: []byte(value)}, record.CloudEvents{Namespace: "shop"}.Read)
		require.ErrorIs(t, err, record.ErrMalformed, value)
		require.ErrorContains(t, err, want, value)
	}
}

func TestDebeziumOutbox(t *testing.T) {
	rec := consumer.Record{Key: []byte("o-1"), Value: []byte(`{"amount":10}`), Headers: headers(
		"id", foreignID, "eventType", "NoTimePaid", "tenant", "acme", "createdAt", "2026-11-24T10:00:00.123456Z")}
	ev, err := parse(t, rec, record.DebeziumOutbox{Namespace: "billing"}.Read)
	require.NoError(t, err)
	require.Equal(t, consumer.Event{Event: record.Event{
		Key: mustKeyAt(t, outboxNoTime), Type: "NoTimePaid", AggregateID: "o-1", Payload: []byte(`{"amount":10}`),
		Headers: map[string]string{"id": foreignID, "eventType": "NoTimePaid", "tenant": "acme", "createdAt": "2026-11-24T10:00:00.123456Z"}},
		Source: consumer.Source{Topic: "orders", Partition: 2, Offset: 7}, RecordHeaders: rec.Headers,
	}, ev)

	for _, at := range []string{"2026-11-24T10:00:00.123456Z", "1795514400123", "1795514400123456", "1795514400123456789"} {
		rec.Headers[3].Value = []byte(at)
		ev, err = parse(t, rec, record.DebeziumOutbox{Namespace: "billing", TimeHeader: "createdAt"}.Read)
		require.NoError(t, err)
		require.Equal(t, outboxKey, ev.Key.String(), at)
	}

	rec.Headers = headers("id", someKey[9:], "kind", "Paid")
	ev, err = parse(t, rec, record.DebeziumOutbox{Namespace: "payments", TypeHeader: "kind"}.Read)
	require.NoError(t, err)
	require.Equal(t, someKey, ev.Key.String(), "the key under which our relay publishes the same row")

	rec.Headers = headers("id", "4711", "createdAt", "1795514400123")
	ev, err = parse(t, rec, record.DebeziumOutbox{Namespace: "billing", Type: "Paid", TimeHeader: "createdAt"}.Read)
	require.NoError(t, err)
	require.Equal(t, "Paid", ev.Type)
	require.Equal(t, byte(8), byte(ev.Key.UUID().Version()))

	for text, hs := range map[string][]consumer.Header{
		"eventType: missing": headers("id", foreignID, "createdAt", "1795514400123"),
		"createdAt: missing": headers("id", foreignID, "eventType", "Paid"),
		"since 1970":         headers("id", foreignID, "eventType", "Paid", "createdAt", "1795514400"),
		"id: present 2":      headers("id", foreignID, "id", "2", "eventType", "Paid", "createdAt", "1795514400123"),
	} {
		_, err = parse(t, consumer.Record{Headers: hs}, record.DebeziumOutbox{Namespace: "billing", TimeHeader: "createdAt"}.Read)
		require.ErrorIs(t, err, record.ErrMalformed)
		require.ErrorContains(t, err, text)
	}
}

// Records of ours are read by ours alone, damaged ones too: under another key they
// would be other events than their copies.
func TestOursAreNotForeign(t *testing.T) {
	both := []consumer.RecordReader{record.CloudEvents{Namespace: "other"}.Read, record.DebeziumOutbox{Namespace: "other", Type: "Any"}.Read,
		func(consumer.Record) (record.Event, bool, error) { panic("was asked") }}
	for name, hs := range map[string][]consumer.Header{
		"onceward":    headers("idempotency-key", someKey, "event-type", "Paid"),
		"debezium":    headers("id", someKey[9:], "eventType", "Paid", "idempotency-key", someKey),
		"cloudevents": headers("ce_specversion", "1.0", "ce_id", someKey, "ce_source", "payments", "ce_type", "Paid"),
	} {
		ev, err := parse(t, consumer.Record{Headers: hs}, both...)
		require.NoError(t, err, name)
		require.Equal(t, someKey, ev.Key.String(), name)
		require.Equal(t, hs, ev.RecordHeaders, name)

		_, err = parse(t, consumer.Record{Headers: append(hs, headers("replay-mode", "again")...)}, both...)
		require.ErrorIs(t, err, record.ErrMalformed, name)
		require.ErrorContains(t, err, "replay-mode", name)
	}
	_, err := parse(t, consumer.Record{Headers: headers("id", someKey[9:], "eventType", "Paid", "idempotency-key", "payments:damaged")}, both...)
	require.ErrorContains(t, err, "header idempotency-key")
}

// A reader takes what is its own; what nobody takes is malformed as ever.
func TestReadersInOrder(t *testing.T) {
	own := func(rec consumer.Record) (record.Event, bool, error) {
		if string(rec.Value) == "other" {
			return record.Event{}, false, nil
		}
		k, err := outbox.ExternalKey("legacy", string(rec.Key), orderTime)
		return record.Event{Key: k, Type: "Paid"}, true, err
	}
	readers := []consumer.RecordReader{record.CloudEvents{Namespace: "shop"}.Read, record.DebeziumOutbox{Namespace: "billing"}.Read, own}
	ev, err := parse(t, consumer.Record{Key: []byte("4711"), Value: []byte(`{"no":"event"}`)}, readers...)
	require.NoError(t, err)
	require.Equal(t, "legacy", ev.Key.Namespace())

	_, err = parse(t, consumer.Record{Key: []byte("4711"), Value: []byte("other")}, readers...)
	require.ErrorContains(t, err, "idempotency-key: missing")
}

func TestReadersThatFail(t *testing.T) {
	boom := errors.New("boom")
	for want, reader := range map[string]consumer.RecordReader{
		"boom":       func(consumer.Record) (record.Event, bool, error) { return record.Event{}, false, boom },
		"panic: odd": func(consumer.Record) (record.Event, bool, error) { panic("odd") },
		"Goexit": func(consumer.Record) (record.Event, bool, error) {
			runtime.Goexit()
			return record.Event{}, false, nil
		},
		"Key is not": func(consumer.Record) (record.Event, bool, error) { return record.Event{Type: "Paid"}, true, nil },
	} {
		_, err := parse(t, consumer.Record{}, reader)
		require.ErrorIs(t, err, record.ErrMalformed)
		require.ErrorContains(t, err, want)
	}
}
