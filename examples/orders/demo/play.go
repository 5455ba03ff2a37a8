package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup"
	"github.com/onceward/onceward/examples/orders"
	"github.com/onceward/onceward/outbox"
)

const (
	shops        = 4   // producers that place orders side by side
	pace         = 400 // orders placed per second by all of them, at the most
	redeliveries = 5
)

// play is the demo: place orders for most of the time, kill the relay in the
// middle of it, deliver one event again, wait until all is through, compare.
func play(ctx context.Context, s *stage, length time.Duration) (summary, error) {
	ctx, cancel := context.WithTimeout(ctx, length+30*time.Second) // servers may be slow; the load is not longer
	defer cancel()
	w, err := watch(s.kafka.ListenAddrs())
	if err != nil {
		return summary{}, err
	}
	received, err := newOutcomes(ctx, s)
	if err != nil {
		return summary{}, errors.Join(err, w.close())
	}
	group, gctx := errgroup.WithContext(ctx)
	consuming, stopConsuming := context.WithCancel(gctx)
	group.Go(func() error {
		return saramagroup.Run(consuming, s.kafka.ListenAddrs(), received,
			saramagroup.Config{Topics: []string{topic}, Insecure: true})
	})
	live := &board{stage: s, watcher: w, outcomes: received, began: time.Now()}
	group.Go(func() error { return live.run(consuming) })
	group.Go(func() error {
		defer stopConsuming()
		return perform(gctx, s, live, length)
	})
	err = group.Wait()
	if errors.Is(err, context.Canceled) {
		err = ctx.Err()
	}
	if err != nil {
		return summary{}, errors.Join(err, w.close())
	}
	sum, err := compare(ctx, s, w, received)
	return sum, errors.Join(err, w.close())
}

func newOutcomes(ctx context.Context, s *stage) (*outcomes, error) {
	processor, err := consumer.New(ctx, consumer.Config{Group: "shipping", DB: s.db})
	if err != nil {
		return nil, err
	}
	router := consumer.NewRouter(processor)
	orders.Register(router)
	return &outcomes{Router: router}, nil
}

// perform is the script.
func perform(ctx context.Context, s *stage, live *board, length time.Duration) error {
	placing := length * 6 / 10
	group, pctx := errgroup.WithContext(ctx)
	for i := range shops {
		group.Go(func() error { return placeOrders(pctx, s, i, time.Now().Add(placing), &live.rolledBack) })
	}
	group.Go(func() error {
		if err := wait(pctx, placing/2); err != nil {
			return err
		}
		say("kill -9 the relay")
		s.relay.kill()
		if err := wait(pctx, placing/10); err != nil {
			return err
		}
		say("start the relay again, while orders go on")
		return s.relay.start(s.postgres.DSN("postgres"))
	})
	if err := group.Wait(); err != nil {
		return err
	}
	live.placed.Store(true)
	if err := live.until(ctx, "every order is shipped", live.allShipped); err != nil {
		return err
	}
	before := live.outcomes.duplicates.Load()
	key, err := live.watcher.deliverAgain(redeliveries)
	if err != nil {
		return err
	}
	say("delivered %s %d times more", key, redeliveries)
	return live.until(ctx, "the copies are consumed", func() bool {
		return live.outcomes.duplicates.Load() >= before+redeliveries
	})
}

// placeOrders is one shop. Every tenth transaction is rolled back after its
// event was enqueued; such an event must never be seen again.
func placeOrders(ctx context.Context, s *stage, shop int, end time.Time, rolledBack *atomic.Int64) error {
	tick := time.NewTicker(time.Second * shops / pace)
	defer tick.Stop()
	for n := 0; time.Now().Before(end); n++ {
		key, err := outbox.NewKey(orders.Namespace)
		if err != nil {
			return err
		}
		o := orders.Order{ID: fmt.Sprintf("%d-%d", shop, n), Customer: fmt.Sprintf("customer-%d", rand.IntN(50)), Cents: rand.Int64N(100_000)} //nolint:gosec // G404: an order needs no secrecy
		if n%10 == 9 {
			err = changeMind(ctx, s, o)
			rolledBack.Add(1)
		} else {
			err = orders.Place(ctx, s.db, key, o)
		}
		if err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// changeMind enqueues an event and rolls its transaction back.
func changeMind(ctx context.Context, s *stage, o orders.Order) error {
	key, err := outbox.NewKey(orders.Namespace)
	if err != nil {
		return err
	}
	tx, err := s.db.Begin(ctx)
	if err != nil {
		return err
	}
	_, err = outbox.Enqueue(ctx, tx, outbox.Event{Key: key, AggregateType: orders.AggregateType, AggregateID: o.Customer, Type: orders.TypePlaced, Payload: []byte(`{"id":"never"}`)})
	return errors.Join(err, tx.Rollback(ctx))
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
