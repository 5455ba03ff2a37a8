package payments

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer"
)

// TypePlaced is the event that asks for a charge.
const TypePlaced = "OrderPlaced"

// Schema makes the table of this service. Onceward's own come from
// `outboxctl migrate up --side consumer`.
const Schema = `CREATE TABLE IF NOT EXISTS charges (
  order_id text NOT NULL, -- deliberately not unique: a second charge must be seen, not refused
  id       text NOT NULL  -- of the charge, at the provider
)`

// Order is what the payload of the event says.
type Order struct {
	ID    string `json:"id"`
	Cents int64  `json:"cents"`
}

// Register leads the event to its handler. It is one of Router.Func: while the
// provider is called, no transaction is open.
func Register(r *consumer.Router, p *consumer.Processor, provider Provider) {
	r.Func(TypePlaced, func(ctx context.Context, ev consumer.Event) error {
		var o Order
		if err := json.Unmarshal(ev.Payload, &o); err != nil {
			return consumer.DeadLetter(fmt.Errorf("decode order: %w", err)) // no later attempt reads it better
		}
		_, err := consumer.Fence(ctx, p, ev, charge(provider, o))
		return err
	})
}

// charge is the one effect of the event.
func charge(provider Provider, o Order) consumer.Effect[Charge] {
	return consumer.Effect[Charge]{
		Name: "charge",
		// The provider forgets keys after 24 hours. An attempt that was begun longer ago
		// asks it what happened, and does not charge blindly.
		ProviderKeyTTL: 23 * time.Hour,
		Do: func(ctx context.Context, c consumer.Call) (Charge, error) {
			return provider.Charge(ctx, c.Key, o)
		},
		Reconcile: func(ctx context.Context, c consumer.Call) (Charge, bool, error) {
			return provider.Find(ctx, c.Key)
		},
		// In the transaction that says that the effect is complete.
		Commit: func(ctx context.Context, tx pgx.Tx, made Charge) error {
			_, err := tx.Exec(ctx, `INSERT INTO charges (order_id, id) VALUES ($1, $2)`, o.ID, made.ID)
			return err
		},
	}
}
