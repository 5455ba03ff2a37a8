package record_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// A row's headers in the type of a Kafka client, as it is written in the style of
// Debezium's outbox.
func ExampleAppendHeaders() {
	type header struct{ Key, Value []byte } // sarama.RecordHeader
	row := &outbox.Row{
		ID: uuid.MustParse("0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a"), Namespace: "shop", AggregateType: "order", AggregateID: []byte("order-1"),
		Type: "OrderPaid", Payload: []byte(`{"total":5}`), ContentType: "application/json", Headers: []byte(`{"tenant": "acme"}`),
		CreatedAt: time.Date(2026, 10, 1, 12, 30, 0, 123456000, time.UTC),
	}
	headers, err := record.AppendHeaders([]header(nil), record.Copy{Row: row, Position: "0/16B3748"}, record.StyleDebezium)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, h := range headers {
		fmt.Printf("%s: %s\n", h.Key, h.Value)
	}
	// Output:
	// id: 0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a
	// eventType: OrderPaid
	// idempotency-key: shop:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a
	// aggregate-type: order
	// content-type: application/json
	// occurred-at: 2026-10-01T12:30:00.123456Z
	// position: 0/16B3748
	// tenant: acme
}

// A consumer with a Kafka client of its own reads every style of a relay.
func ExampleDecode() {
	rec := record.Record{
		Key: []byte("order-1"), Value: []byte(`{"total":5}`),
		Headers: []record.Header{
			{Name: "ce_specversion", Value: []byte("1.0")},
			{Name: "ce_id", Value: []byte("shop:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a")},
			{Name: "ce_source", Value: []byte("shop")},
			{Name: "ce_type", Value: []byte("OrderPaid")},
			{Name: "tenant", Value: []byte("acme")},
		},
	}
	ev, err := record.Decode(rec)
	fmt.Println(ev.Key, ev.Type, ev.AggregateID, ev.Headers, err)

	rec.Headers[2].Value = []byte("warehouse")
	_, err = record.Decode(rec)
	var malformed *record.MalformedError
	fmt.Println(errors.As(err, &malformed), malformed.Header)
	// Output:
	// shop:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a OrderPaid order-1 map[tenant:acme] <nil>
	// true ce_source
}

// An event of another producer has the same key in either mode of CloudEvents.
func ExampleCloudEvents_Read() {
	reader := record.CloudEvents{Namespace: "partner"}
	ev, mine, err := reader.Read(record.Record{
		Value:   []byte(`{"specversion":"1.0","id":"4711","source":"/orders","type":"paid","time":"2026-11-24T10:00:00Z","data":{"total":5}}`),
		Headers: []record.Header{{Name: "content-type", Value: []byte("application/cloudevents+json")}},
	})
	fmt.Println(mine, ev.Type, string(ev.Payload), err)
	same, _ := outbox.ExternalKey("partner", "/orders 4711", ev.OccurredAt)
	fmt.Println(ev.Key == same)
	// Output:
	// true paid {"total":5} <nil>
	// true
}

// A GitHub delivery has an id and no time: its class is keyed by arrival.
func ExampleTimelessKey() {
	key, err := record.TimelessKey("github", "72d3162e-cc78-11e3-81ab-4c9367dc0958")
	fmt.Println(key.Time().Format(time.DateOnly), record.Timeless(key), err)
	// Output: 2015-01-01 true <nil>
}

// Two copies of one event have one fingerprint; an event that was given the key of
// another one has not.
func ExampleEvent_Fingerprint() {
	key, _ := outbox.ParseKeyAt("payments:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a", time.Time{}, outbox.NoSkewLimit)
	ev := record.Event{Key: key, Type: "OrderPaid", AggregateID: "order-1", Payload: []byte(`{"amount":10}`)}
	replayed := ev
	replayed.Position, replayed.ReplayMode = "0/16B3748", record.ReplayRedeliver
	other := ev
	other.Payload = []byte(`{"amount":11}`)
	fmt.Println(ev.Fingerprint(), replayed.Fingerprint() == ev.Fingerprint(), other.Fingerprint() == ev.Fingerprint())
	// Output: 48dc4abc3d4d95fa4acd5d06fa460cb3 true false
}
