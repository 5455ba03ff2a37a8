package saramagroup_test

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup"
)

// killedAttempts is how often the process of killed may die of one event.
const killedAttempts = 2

// killed is a member in a process of its own, which dies of the event of the aggregate
// "poison", as of want of memory.
func killed(brokers, dsn string) error {
	ctx := context.Background()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	p, err := consumer.New(ctx, consumer.Config{Group: "billing", DB: pool, Retry: consumer.Retry{MaxAttempts: killedAttempts}, Logger: log})
	if err != nil {
		return err
	}
	r := consumer.NewRouter(p)
	r.Batch("Paid", consumer.BatchOptions{Max: 20, Linger: 10 * time.Millisecond}, func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		if ev.AggregateID == "poison" {
			os.Exit(137)
		}
		_, err := tx.Exec(ctx, "INSERT INTO effects VALUES ($1)", ev.Key.String())
		return err
	})
	return saramagroup.Run(ctx, strings.Split(brokers, ","), r, saramagroup.Config{
		Topics: []string{topic}, Insecure: true, Concurrency: 3, MaxHeld: 50, SessionTimeout: 6 * time.Second, RetryMin: 10 * time.Millisecond, Logger: log,
	})
}
