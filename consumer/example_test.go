package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// Every outcome but one lets the message's offset be committed.
func ExampleOutcome_Acknowledges() {
	for _, outcome := range []consumer.Outcome{consumer.Processed, consumer.Duplicate, consumer.InProgress, consumer.DeadLettered} {
		fmt.Println(outcome, outcome.Acknowledges())
	}
	// Output:
	// processed true
	// duplicate true
	// in progress false
	// dead-lettered true
}

// Whose failure it is decides whether an attempt is counted.
func ExampleIsInfrastructure() {
	for _, err := range []error{
		&pgconn.PgError{Code: "40P01"}, // deadlock
		&pgconn.PgError{Code: "23505"}, // unique violation
		context.DeadlineExceeded,
		errors.New("no such account"),
		consumer.DeadLetter(errors.New("the payload is no JSON")), // for good, at the first attempt
	} {
		fmt.Println(consumer.IsInfrastructure(err))
	}
	// Output:
	// true
	// false
	// false
	// false
	// false
}

// A provider knows an effect by a key that is the same at every attempt.
func ExampleProviderKey() {
	event, _ := outbox.ParseKey("shop:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a")
	fmt.Println(consumer.ProviderKey(event, "billing", "charge"))
	// Output: shop:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a/billing/charge
}

// Each type has the handler that fits its effect: rows here, many small ones, or a call
// outside.
func ExampleRouter() {
	var db *pgxpool.Pool // of the consumer's database
	processor, err := consumer.New(context.Background(), consumer.Config{Group: "billing", DB: db})
	if err != nil {
		fmt.Println(err)
		return
	}
	countView := func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		_, err := tx.Exec(ctx, "UPDATE pages SET views = views + 1 WHERE id = $1", ev.AggregateID)
		return err
	}
	charge := func(context.Context, consumer.Call) (string, error) { return "ch_1", nil }

	router := consumer.NewRouter(processor)
	router.Tx("InvoicePaid", func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		_, err := tx.Exec(ctx, "INSERT INTO receipts VALUES ($1, $2)", ev.AggregateID, ev.Payload)
		return err
	})
	router.Batch("PageViewed", consumer.BatchOptions{Max: 500, Linger: 50 * time.Millisecond}, countView) // a handler as Tx has it
	router.Func("OrderPlaced", func(ctx context.Context, ev consumer.Event) error {
		_, err := consumer.Fence(ctx, processor, ev, consumer.Effect[string]{Name: "charge", Do: charge}) // charge gives the provider Call.Key
		return err
	})
}

// The claims of an event are remembered for the window of its class.
func ExampleClass() {
	config := consumer.Config{Classes: []consumer.Class{
		{Pattern: "Payment*", Window: 24 * time.Hour, Late: consumer.LateDeadLetter},
		{Pattern: "Order*", Window: 4 * time.Hour},
		{Pattern: "*", Window: 7 * 24 * time.Hour}, // the default when there is no class at all
	}}
	for _, class := range config.Classes {
		fmt.Println(class.Pattern, class.Window, class.Late == consumer.LateDeadLetter)
	}
	// Output:
	// Payment* 24h0m0s true
	// Order* 4h0m0s false
	// * 168h0m0s false
}

// A record that no relay of ours has written is read by the first that takes it for its own.
func ExampleRecordReader() {
	readLegacy := func(consumer.Record) (ev record.Event, mine bool, err error) { return ev, false, nil }
	config := consumer.Config{Readers: []consumer.RecordReader{
		record.CloudEvents{Namespace: "shop"}.Read,                                // binary and structured mode, any producer
		record.DebeziumOutbox{Namespace: "billing", TimeHeader: "createdAt"}.Read, // by header id
		readLegacy, // func(consumer.Record) (record.Event, bool, error): anything else
	}}
	rec := consumer.Record{
		Key: []byte("inv-7"), Value: []byte(`{"total":5}`),
		Headers: []record.Header{
			{Name: "id", Value: []byte("4711")},
			{Name: "eventType", Value: []byte("InvoicePaid")},
			{Name: "createdAt", Value: []byte("2026-11-24T10:00:00Z")},
		},
	}
	for _, read := range config.Readers {
		if ev, mine, err := read(rec); mine {
			fmt.Println(ev.Type, ev.AggregateID, ev.Key.Time(), err)
		}
	}
	// Output: InvoicePaid inv-7 2026-11-24 10:00:00 +0000 UTC <nil>
}
