package orders

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer"
)

// ship is the handler of OrderPlaced. It runs in the transaction that claims the
// event, so that an order is shipped once, however often its event arrives.
func ship(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
	var o Order
	if err := json.Unmarshal(ev.Payload, &o); err != nil {
		return fmt.Errorf("decode order: %w", err)
	}
	_, err := tx.Exec(ctx, `INSERT INTO shipments (order_id, key) VALUES ($1, $2)`, o.ID, ev.Key.String())
	if err != nil {
		return fmt.Errorf("insert shipment: %w", err)
	}
	return nil
}

// Register leads the event types of this package to their handlers.
func Register(r *consumer.Router) { r.Tx(TypePlaced, ship) }
