// Package drivers shows how a service enqueues an event with each way to reach
// PostgreSQL from Go: one file per driver or library, one function in each, and one
// test that runs them all against a real server.
//
// Every function does the same: it writes the event and the business row in one
// transaction, so that both exist or neither does.
//
// The folder is a module of its own, so that none of these libraries is a dependency
// of Onceward. It is built in the workspace of this repository (go.work).
package drivers

import "github.com/onceward/onceward/outbox"

// payment is what the service was asked to do. The key was made once, when the
// request arrived, and is the same when the request is tried again.
type payment struct {
	Key     outbox.Key
	Invoice string
}

// insertPayment is the business statement; the table has one payment per invoice.
const insertPayment = `INSERT INTO payments (invoice) VALUES ($1)`

// paid is the event that the service publishes.
func paid(p payment) outbox.Event {
	return outbox.Event{
		Key: p.Key, AggregateType: "invoice", AggregateID: p.Invoice, Type: "InvoicePaid",
		Payload: []byte(`{"invoice":"` + p.Invoice + `"}`), Headers: map[string]string{"tenant": "acme"},
	}
}
