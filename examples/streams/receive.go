package streams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// Schema makes the table of this service, beside `outboxctl migrate up --side consumer`.
const Schema = `CREATE TABLE IF NOT EXISTS shipments (order_id text NOT NULL)`

// An entry has two fields: "key", which the producer made once for the event with package
// outbox and gives it again whenever it adds it again, and "order", its JSON.
const (
	Stream  = "{orders}"         // in braces: a cluster has both in one slot
	Refused = "{orders}:refused" // entries that no later delivery could apply, with an "error"
	Group   = "shipping"
)

// batch is how many entries are read, and how many are taken over, at once.
const batch = 10

// Receiver is one member of the group. Any number of them may run, in any process.
type Receiver struct {
	Redis     redis.UniversalClient
	Processor *consumer.Processor
	// Name is the member's in the group, best one that a restart keeps: Redis never forgets one.
	Name string
	// Idle is after how long an entry that was not acknowledged is taken over, and so also the
	// pause before a failed one is tried again. Longer than a batch takes: one that is taken
	// over too early does no harm, but is work done for nothing.
	Idle time.Duration
}

// NewProcessor returns the group that claims. The window is longer than an entry may be on
// its way: in the stream, pending, or at a producer that adds it again.
func NewProcessor(ctx context.Context, db *pgxpool.Pool) (*consumer.Processor, error) {
	return consumer.New(ctx, consumer.Config{
		Group: Group, DB: db,
		Classes: []consumer.Class{{Pattern: "*", Window: 15 * 24 * time.Hour}},
		Retry:   consumer.Retry{MaxAttempts: 3},
	})
}

// Run receives until ctx ends, at most a second longer, or Redis fails.
func (r *Receiver) Run(ctx context.Context) error {
	err := r.Redis.XGroupCreateMkStream(ctx, Stream, Group, "0").Err()
	if err != nil && !redis.HasErrorPrefix(err, "BUSYGROUP") {
		return fmt.Errorf("create group %s: %w", Group, err)
	}
	for from := "0-0"; ctx.Err() == nil; {
		var entries []redis.XMessage
		if entries, from, err = r.receive(ctx, from); err != nil && ctx.Err() == nil {
			return fmt.Errorf("receive from %s: %w", Stream, err)
		}
		for _, e := range entries {
			if err := r.handle(ctx, e); err != nil && ctx.Err() == nil {
				slog.WarnContext(ctx, "entry left to be taken over", "entry", e.ID, "error", err)
			}
		}
	}
	return nil
}

// receive takes over what others have left, and reads what nobody has read yet, for which it
// waits when there is nothing else to do. next is where the next look at what was left begins.
func (r *Receiver) receive(ctx context.Context, from string) (entries []redis.XMessage, next string, err error) {
	left, next, err := r.Redis.XAutoClaim(ctx, &redis.XAutoClaimArgs{
		Stream: Stream, Group: Group, Consumer: r.Name, MinIdle: r.Idle, Start: from, Count: batch,
	}).Result()
	if err != nil {
		return nil, from, err
	}
	wait := time.Second
	if len(left) > 0 {
		wait = -1
	}
	read, err := r.Redis.XReadGroup(ctx, &redis.XReadGroupArgs{
		Streams: []string{Stream, ">"}, Group: Group, Consumer: r.Name, Count: batch, Block: wait,
	}).Result()
	if err != nil && !errors.Is(err, redis.Nil) { // Nil: there is nothing new
		return nil, next, err
	}
	for _, stream := range read {
		left = append(left, stream.Messages...)
	}
	return left, next, nil
}

// handle acknowledges an entry only when that is committed which makes it needless: the
// effect, by this delivery or another one, or the dead letter. With an error it stays pending.
func (r *Receiver) handle(ctx context.Context, e redis.XMessage) error {
	text, _ := e.Values["key"].(string)
	key, err := outbox.ParseKeyAt(text, time.Now(), outbox.NoSkewLimit)
	if err != nil {
		return r.refuse(ctx, e, err)
	}
	order, _ := e.Values["order"].(string)
	ev := consumer.Event{Event: record.Event{Key: key, Type: "OrderPaid", Payload: []byte(order)}}
	receipt, err := consumer.Do(ctx, r.Processor, ev, func(ctx context.Context, tx pgx.Tx) (struct{}, error) {
		return struct{}{}, ship(ctx, tx, ev)
	})
	var mismatch *consumer.MismatchError
	switch {
	case errors.As(err, &mismatch), err != nil && receipt.Outcome == consumer.Replay:
		return r.refuse(ctx, e, err)
	case err != nil && receipt.Outcome != consumer.DeadLettered:
		if _, err = consumer.CountFailure(ctx, r.Processor, ev, err); err != nil {
			return err
		}
	}
	if err := r.Redis.XAck(ctx, Stream, Group, e.ID).Err(); err != nil { // it comes again, as a duplicate
		return fmt.Errorf("acknowledge: %w", err)
	}
	return nil
}

// refuse puts an entry aside that would come for ever: it has no key, one that another event
// has, or one from before the window. Redis has no place of its own for such entries. Two
// receivers may both put it there.
func (r *Receiver) refuse(ctx context.Context, e redis.XMessage, why error) error {
	values := []any{"entry", e.ID, "error", why.Error()}
	for name, value := range e.Values {
		values = append(values, "of:"+name, value)
	}
	_, err := r.Redis.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		tx.XAdd(ctx, &redis.XAddArgs{Stream: Refused, Values: values})
		tx.XAck(ctx, Stream, Group, e.ID)
		return nil
	})
	if err != nil {
		return fmt.Errorf("refuse: %w", errors.Join(err, why))
	}
	slog.WarnContext(ctx, "entry refused", "entry", e.ID, "stream", Refused, "error", why)
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
