package redisfast_test

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/redisfast"
)

// A count that may be off by a few leaves no claim, and with the memory of Redis what comes again is
// mostly not counted again.
func Example_remembered() {
	count := func(router *consumer.Router, views interface {
		Add(ctx context.Context, page string) error
	}) {
		router.AtLeastOnce("PageViewed", func(ctx context.Context, ev consumer.Event) error {
			return views.Add(ctx, ev.AggregateID) // nil is what is remembered
		}, consumer.Remembered)
	}
	_ = count
}

// The consumer works without Redis as it does with it; what is in Redis saves it
// transactions.
func Example() {
	run := func(ctx context.Context, pool *pgxpool.Pool) error {
		fast, err := redisfast.New(redisfast.Config{Redis: redis.UniversalOptions{Addrs: []string{"redis.internal:6379"}}})
		if err != nil {
			return err
		}
		defer fast.Close()
		in, err := consumer.New(ctx, consumer.Config{Group: "billing", DB: pool, Completed: fast})
		if err != nil {
			return err
		}
		router := consumer.NewRouter(in)
		return router.Err() // and then as without it
	}
	_ = run
}
