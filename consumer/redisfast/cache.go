package redisfast

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"

	"github.com/onceward/onceward/consumer"
)

// The breaker: how many failures in a row open it, and for how long.
const (
	failuresToOpen = 5
	openFor        = time.Second
)

// complainEvery is how often failures are logged at most.
const complainEvery = time.Minute

// Cache is a [consumer.Completed] in Redis. Safe for concurrent use. Make one with [New], and
// close it after the last use.
type Cache struct {
	client     redis.UniversalClient
	prefix     string
	timeout    time.Duration
	log        *slog.Logger
	breaker    *gobreaker.CircuitBreaker[[]redis.Cmder]
	counts     counts
	complained atomic.Int64 // Unix ms
}

var _ consumer.Completed = (*Cache)(nil)

type counts struct{ hits, misses, stale, errors, unasked, remembered, forgone atomic.Int64 }

// New checks the configuration, whose error names the field. It connects to nothing: Redis may
// come later.
func New(cfg Config) (*Cache, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Cache{
		client: redis.NewUniversalClient(cfg.options()), prefix: cfg.Prefix, timeout: cfg.Timeout, log: cfg.Logger,
		breaker: gobreaker.NewCircuitBreaker[[]redis.Cmder](gobreaker.Settings{
			MaxRequests: 1, Timeout: openFor,
			ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= failuresToOpen },
			IsExcluded:  func(err error) bool { return errors.Is(err, errCaller) },
		}),
	}, nil
}

// Close ends the connections. Afterwards nothing is known, and nothing remembered.
func (c *Cache) Close() error {
	if err := c.client.Close(); err != nil {
		return fmt.Errorf("close the connections to Redis: %w", err)
	}
	return nil
}

// Stats returns the counts since New.
func (c *Cache) Stats() consumer.CompletedStats {
	n := &c.counts
	return consumer.CompletedStats{
		Hits: n.hits.Load(), Misses: n.misses.Load(), Stale: n.stale.Load(), Errors: n.errors.Load(),
		Unasked: n.unasked.Load(), Remembered: n.remembered.Load(), Forgone: n.forgone.Load(),
	}
}

// Known implements [consumer.Completed], with one look-up.
func (c *Cache) Known(ctx context.Context, entries []consumer.CompletedEntry) []bool {
	answers, err := c.do(ctx, func(ctx context.Context, p redis.Pipeliner) {
		for _, e := range entries {
			p.Get(ctx, c.prefix+e.Key)
		}
	})
	if len(answers) != len(entries) {
		c.failed(err, &c.counts.errors, &c.counts.unasked, len(entries))
		return nil
	}
	known := make([]bool, len(entries))
	for i, answer := range answers {
		got, ok := answer.(*redis.StringCmd)
		switch {
		case !ok || got.Err() != nil && !errors.Is(got.Err(), redis.Nil):
			c.failed(answer.Err(), &c.counts.errors, &c.counts.unasked, 1)
		case got.Err() != nil:
			c.counts.misses.Add(1)
		case got.Val() != entries[i].Value:
			c.counts.stale.Add(1)
		default:
			known[i] = true
			c.counts.hits.Add(1)
		}
	}
	return known
}

// Remember implements [consumer.Completed], with one write.
func (c *Cache) Remember(ctx context.Context, entries []consumer.CompletedEntry) {
	answers, err := c.do(ctx, func(ctx context.Context, p redis.Pipeliner) {
		for _, e := range entries {
			if e.Keep >= time.Millisecond { // less would be for ever, or refused
				p.Set(ctx, c.prefix+e.Key, e.Value, e.Keep.Truncate(time.Millisecond))
			}
		}
	})
	if answers == nil && err != nil {
		c.failed(err, &c.counts.forgone, &c.counts.forgone, len(entries))
		return
	}
	for _, answer := range answers {
		if answer.Err() != nil {
			c.failed(answer.Err(), &c.counts.forgone, &c.counts.forgone, 1)
			continue
		}
		c.counts.remembered.Add(1)
	}
}

// errCaller: the caller's context ended, which says nothing of Redis.
var errCaller = errors.New("the caller's context has ended")

// do runs one pipeline within the timeout, unless Redis is left alone. The answers are there
// when Redis has answered, whatever: each has its own error.
func (c *Cache) do(caller context.Context, fill func(context.Context, redis.Pipeliner)) ([]redis.Cmder, error) {
	return c.breaker.Execute(func() ([]redis.Cmder, error) {
		ctx, cancel := context.WithTimeout(caller, c.timeout)
		defer cancel()
		p := c.client.Pipeline()
		fill(ctx, p)
		answers, err := p.Exec(ctx)
		switch {
		case err == nil || answered(answers, err):
			return answers, nil
		case caller.Err() != nil:
			return nil, errCaller
		}
		return nil, err
	})
}

// answered reports whether an error is what Redis has said to one of the commands, nil or a
// refusal, and not to the login before them, when none has got an answer.
func answered(answers []redis.Cmder, err error) bool {
	var said redis.Error
	return errors.As(err, &said) && slices.ContainsFunc(answers, func(a redis.Cmder) bool { return a.Err() != nil })
}

// failed counts entries, and says so now and then.
func (c *Cache) failed(err error, failed, unasked *atomic.Int64, entries int) {
	if errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) {
		unasked.Add(int64(entries))
		return
	}
	failed.Add(int64(entries))
	now, last := time.Now().UnixMilli(), c.complained.Load()
	if errors.Is(err, errCaller) || now-last < complainEvery.Milliseconds() || !c.complained.CompareAndSwap(last, now) {
		return
	}
	c.log.Warn("Redis fails; duplicates go to PostgreSQL, what leaves no claim (consumer.Remembered) is handled again, and nothing else changes", "error", err)
}
