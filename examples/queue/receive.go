package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// Schema makes the table of this service, beside `outboxctl migrate up --side consumer`.
const Schema = `CREATE TABLE IF NOT EXISTS shipments (order_id text NOT NULL)`

// Queue is what is needed of a queue. The client of SQS has it under the names
// ReceiveMessage and DeleteMessage.
type Queue interface {
	// Receive leases some messages, or waits for them. One whose lease ends comes again.
	Receive(ctx context.Context) ([]Message, error)
	// Delete ends a message for good.
	Delete(ctx context.Context, receipt string) error
}

// Message is one delivery.
type Message struct {
	ID      string    // the same at every delivery
	Sent    time.Time // as well
	Receipt string    // of this delivery
	Body    []byte
}

// NewProcessor returns the group that claims. The window is longer than the queue keeps
// messages: at most 14 days in SQS.
func NewProcessor(ctx context.Context, db *pgxpool.Pool) (*consumer.Processor, error) {
	return consumer.New(ctx, consumer.Config{
		Group: "shipping", DB: db,
		Classes: []consumer.Class{{Pattern: "*", Window: 15 * 24 * time.Hour}},
		Retry:   consumer.Retry{MaxAttempts: 3}, // fewer than maxReceiveCount of the queue's redrive policy
	})
}

// Run receives until ctx ends. Any number of processes may.
func Run(ctx context.Context, q Queue, p *consumer.Processor) error {
	for ctx.Err() == nil {
		messages, err := q.Receive(ctx)
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("receive: %w", err)
		}
		for _, m := range messages {
			if err := handle(ctx, p, m); err != nil {
				slog.WarnContext(ctx, "message left to come again", "message", m.ID, "error", err)
				continue
			}
			if err := q.Delete(ctx, m.Receipt); err != nil { // it comes again, as a duplicate
				slog.WarnContext(ctx, "message not deleted", "message", m.ID, "error", err)
			}
		}
	}
	return nil
}

// handle returns nil for a message that may be deleted: it was applied, now or before, or
// is a dead letter. The queue gives back all others.
func handle(ctx context.Context, p *consumer.Processor, m Message) error {
	key, err := outbox.ExternalKey("orders-queue", m.ID, m.Sent)
	if err != nil {
		return err
	}
	ev := consumer.Event{Event: record.Event{Key: key, Type: "OrderPaid", Payload: m.Body}}
	receipt, err := consumer.Do(ctx, p, ev, func(ctx context.Context, tx pgx.Tx) (struct{}, error) {
		return struct{}{}, ship(ctx, tx, ev)
	})
	if err != nil && receipt.Outcome != consumer.DeadLettered {
		_, err = consumer.CountFailure(ctx, p, ev, err)
		return err
	}
	return nil
}

func ship(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
	var order struct{ ID string }
	if err := json.Unmarshal(ev.Payload, &order); err != nil {
		return consumer.DeadLetter(fmt.Errorf("decode order: %w", err)) // no later attempt reads it better
	}
	if order.ID == "" {
		return errors.New("the order has no id")
	}
	if _, err := tx.Exec(ctx, `INSERT INTO shipments (order_id) VALUES ($1)`, order.ID); err != nil {
		return fmt.Errorf("insert shipment: %w", err)
	}
	return nil
}

// Register leads dead letters that an operator has redriven to the same handler:
// call Router.Redrive now and then.
func Register(r *consumer.Router) { r.Tx("OrderPaid", ship) }
