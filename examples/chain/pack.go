package chain

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/outbox"
)

// The event that this service reads, and those that it writes.
const (
	TypePlaced    = "OrderPlaced"
	Namespace     = "warehouse"
	AggregateType = "parcel"
	TypePacked    = "ParcelPacked"
)

// Schema makes the table of this service. Its database has both sides of Onceward:
// `outboxctl migrate up --side consumer` and `--side outbox`.
const Schema = `CREATE TABLE IF NOT EXISTS parcels (order_id text NOT NULL)`

// order is what this service needs of the payload.
type order struct {
	ID string `json:"id"`
}

// Register leads the event to its handler.
func Register(r *consumer.Router) { r.Tx(TypePlaced, pack) }

// pack runs in the transaction that claims OrderPlaced. ParcelPacked is enqueued in
// it, so that however often OrderPlaced arrives it is followed by one ParcelPacked.
func pack(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
	var o order
	if err := json.Unmarshal(ev.Payload, &o); err != nil {
		return consumer.DeadLetter(fmt.Errorf("decode order: %w", err)) // no later attempt reads it better
	}
	// A new event, a new key. It need not be kept over tries: the claim sees to it that
	// one try commits.
	key, err := outbox.NewKey(Namespace)
	if err != nil {
		return err
	}
	body, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode parcel: %w", err)
	}
	_, err = outbox.Enqueue(ctx, tx, outbox.Event{
		Key: key, AggregateType: AggregateType, AggregateID: o.ID, Type: TypePacked, Payload: body,
		Traceparent: ev.Traceparent, // the next service sees where it began
	})
	if err != nil {
		return err
	}
	if _, err = tx.Exec(ctx, `INSERT INTO parcels (order_id) VALUES ($1)`, o.ID); err != nil {
		return fmt.Errorf("insert parcel: %w", err)
	}
	return nil
}
