package orders

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/outbox"
)

// Names of the events on the wire.
const (
	Namespace     = "shop"
	AggregateType = "order"
	TypePlaced    = "OrderPlaced"
)

// Schema makes the tables of both services. Onceward's own come from
// `outboxctl migrate up`.
const Schema = `
CREATE TABLE IF NOT EXISTS orders (
  id       text   PRIMARY KEY,
  customer text   NOT NULL,
  cents    bigint NOT NULL
);
CREATE TABLE IF NOT EXISTS customers (
  id    text   PRIMARY KEY,
  cents bigint NOT NULL -- of all orders; a statement that must not run twice
);
CREATE TABLE IF NOT EXISTS shipments (
  id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  order_id text   NOT NULL, -- deliberately not unique: a second shipment must be seen, not refused
  key      text   NOT NULL
);`

// Order is the business row, and the payload of the event.
type Order struct {
	ID       string `json:"id"`
	Customer string `json:"customer"`
	Cents    int64  `json:"cents"`
}

// Place enqueues OrderPlaced and stores the order in one transaction: either
// both are there after it, or neither. The key is made by the caller, before,
// and kept when the call is tried again, because the answer of a commit can be
// lost. Enqueue comes first: when the event is there already, so is all that an
// earlier try has done, and it must not be done again.
func Place(ctx context.Context, db *pgxpool.Pool, key outbox.Key, o Order) error {
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return place(ctx, tx, key, o) })
	if err != nil {
		return fmt.Errorf("place order %s: %w", o.ID, err)
	}
	return nil
}

func place(ctx context.Context, tx pgx.Tx, key outbox.Key, o Order) error {
	body, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode order: %w", err)
	}
	result, err := outbox.Enqueue(ctx, tx, outbox.Event{
		Key: key, AggregateType: AggregateType, AggregateID: o.Customer, Type: TypePlaced, Payload: body,
	})
	if err != nil || result == outbox.Duplicate {
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO orders (id, customer, cents) VALUES ($1, $2, $3)`, o.ID, o.Customer, o.Cents)
	if err != nil {
		return fmt.Errorf("insert order: %w", err)
	}
	_, err = tx.Exec(ctx, `INSERT INTO customers AS c (id, cents) VALUES ($1, $2)
		ON CONFLICT (id) DO UPDATE SET cents = c.cents + EXCLUDED.cents`, o.Customer, o.Cents)
	if err != nil {
		return fmt.Errorf("add to the customer's sum: %w", err)
	}
	return nil
}
