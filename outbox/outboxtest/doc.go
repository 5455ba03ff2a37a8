// Package outboxtest is for the tests of services that write events.
//
// # With a database
//
// [Events] reads what the test's transaction has enqueued, and [AllEvents] what is
// in the outbox. Both return the events in the order of their statements:
//
//	tx := begin(t)                  // the service's own test database
//	service.Pay(ctx, tx, "inv-7")   // calls outbox.Enqueue
//	outboxtest.RequireEnqueued(t, outboxtest.Events(t, tx),
//	    outbox.Event{AggregateType: "invoice", AggregateID: "inv-7", Type: "InvoicePaid", Payload: []byte(`{"n": 7}`)})
//
// The tables come from package migrations, which a test's setup calls once:
// migrations.New(migrations.Config{Pool: pool, Side: migrations.Outbox}), then Up.
// It is not called here, because outbox and what belongs to it import nothing
// of the rest.
//
// # Without a database
//
// A [Recorder] plays the transaction. It answers as PostgreSQL would, duplicates
// and reused keys included, and holds what was enqueued. What it cannot show is
// that the event is in the transaction of the business rows: one test with a
// database is needed for that, whatever else is there.
//
// # Failures
//
// Functions that take a [TB] end the test with a message that holds what was found
// and what was wanted. Nothing here retries or waits.
package outboxtest
