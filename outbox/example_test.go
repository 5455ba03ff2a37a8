package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/outbox"
)

// The event and the business rows commit together, or not at all. Enqueue comes first: of
// a duplicate an earlier try has made the rows, too.
func ExampleEnqueue() {
	ctx := context.Background()
	db, err := pgx.Connect(ctx, os.Getenv("PRODUCER_DSN"))
	if err != nil {
		fmt.Println(err)
		return
	}
	key, err := outbox.NewKey("billing") // once per event: a retry has the same
	if err != nil {
		fmt.Println(err)
		return
	}
	body := []byte(`{"invoice": "inv-7"}`)
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		result, err := outbox.Enqueue(ctx, tx, outbox.Event{
			Key: key, AggregateType: "invoice", AggregateID: "inv-7", Type: "InvoicePaid", Payload: body,
		})
		if err != nil || result == outbox.Duplicate {
			return err // a duplicate: nil, and no business statement
		}
		_, err = tx.Exec(ctx, "UPDATE invoices SET paid = true WHERE id = $1", "inv-7")
		return err
	})
	fmt.Println(err)
}

// The invoice run of a tenant in November is one event, however often it is computed.
func ExampleDeriveKey() {
	month := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	first, err := outbox.DeriveKey("billing", month, "invoice-run", "tenant-7")
	if err != nil {
		fmt.Println(err)
		return
	}
	again, _ := outbox.DeriveKey("billing", month, "invoice-run", "tenant-7")
	fmt.Println(first, first.Time().Format(time.DateOnly), again == first)
	// Output: billing:01a19467-e800-8375-a6d6-a55617f23e0b 2026-11-01 true
}

// A webhook has an id and a time of its own: both are the same at a second delivery.
func ExampleExternalKey() {
	created := time.Unix(1_795_514_400, 0)
	key, err := outbox.ExternalKey("stripe", "evt_1NvK4u2eZvKYlo2C", created)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(key.Namespace(), key.Time(), key.UUID().Version())
	// Output: stripe 2026-11-24 10:00:00 +0000 UTC VERSION_8
}

// What is no key says by which rule.
func ExampleParseKeyAt() {
	now := time.Date(2026, 11, 24, 10, 0, 0, 0, time.UTC)
	for _, text := range []string{
		"shop:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a",
		"shop:0199f3c4-7b1e-4c3a-9a51-3f0c2d1e4b5a",
		"Shop:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a",
	} {
		key, err := outbox.ParseKeyAt(text, now, outbox.DefaultKeySkew)
		var broken *outbox.KeyError
		if errors.As(err, &broken) {
			fmt.Println("broken:", broken.Rule)
			continue
		}
		fmt.Println(key.Namespace(), key.Time().Format(time.DateTime))
	}
	// Output:
	// shop 2025-10-17 20:02:44
	// broken: version
	// broken: namespace
}

// Enqueue refuses a broken event before anything is sent. A test can ask the same.
func ExampleEvent_Validate() {
	now := time.Date(2026, 11, 24, 10, 0, 0, 0, time.UTC)
	key, _ := outbox.ExternalKey("shop", "order-1/paid", now)
	event := outbox.Event{
		Key: key, AggregateType: "order", AggregateID: "order-1", Type: "OrderPaid",
		Payload: []byte(`{"total":5}`), Headers: map[string]string{"event-type": "mine"},
	}
	fmt.Println(event.Validate(now))
	delete(event.Headers, "event-type")
	fmt.Println(event.Validate(now))
	// Output:
	// invalid event: Headers["event-type"]: reserved by the wire contract; choose another name
	// <nil>
}
