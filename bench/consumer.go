package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/bench/internal/report"
	"github.com/onceward/onceward/bench/internal/sink"
	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/record"
)

// What the consumer's side is measured with.
const (
	consumers = 4   // deliveries at once
	batchOf   = 100 // events in a batch
	group     = "bench"
)

// consume measures the consumer's side: an effect of one UPDATE, one event a transaction and a
// hundred, beside bare SQL of the same shape, where as many events were applied before as old says.
// No Kafka is in it. Commits of both wait for the disk: those of a claim do whatever the session asks
// for, because an effect that PostgreSQL forgets is lost.
func consume(ctx context.Context, b *bench, workload string, old int) (err error) {
	st, err := b.servers.open(ctx, workload)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.close(ctx)) }()
	c := &consuming{stage: st, old: old}
	if err := c.open(ctx); err != nil {
		return err
	}
	err = calling(ctx, b, workload, consumers, map[string]call{
		report.SQL: c.sql, report.Tx: c.tx, report.SQLBatch: c.sqlBatch, report.BatchOf: c.batch,
	})
	if err != nil {
		return err
	}
	return c.compare(ctx)
}

// consuming is a service that applies events.
type consuming struct {
	stage   *stage
	old     int // claims of events of before
	router  *consumer.Router
	next    atomic.Int64
	applied atomic.Int64
}

// The event types, by how they are handled.
const (
	oneByOne = "OrderChanged"
	together = "PageViewed"
)

func (c *consuming) open(ctx context.Context) error {
	_, err := c.stage.pool.Exec(ctx, fmt.Sprintf(`CREATE TABLE counters (key text PRIMARY KEY, n bigint NOT NULL);
		INSERT INTO counters SELECT %s, 0 FROM pg_catalog.generate_series(0, %d) n`, sink.Usual.KeySQL("n"), sink.Usual.Keys-1))
	if err != nil {
		return fmt.Errorf("make the consumer's table: %w", err)
	}
	if err := c.remember(ctx); err != nil {
		return err
	}
	p, err := consumer.New(ctx, consumer.Config{Group: group, DB: c.stage.pool})
	if err != nil {
		return err
	}
	c.router = consumer.NewRouter(p)
	apply := func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error { return count(ctx, tx, ev.AggregateID) }
	c.router.Tx(oneByOne, apply)
	c.router.Batch(together, consumer.BatchOptions{Max: batchOf}, apply)
	return c.router.Err()
}

// remember claims the events of before. Their times are of today, whose partition takes the new
// claims, too: that one table and index grow.
func (c *consuming) remember(ctx context.Context) error {
	if c.old == 0 {
		return nil
	}
	for _, sql := range []string{
		fmt.Sprintf(`INSERT INTO onceward.processed_events (event_id, consumer_group, event_type, namespace, fingerprint, outcome)
			SELECT (lpad(to_hex((today + (now - today) * n / %[1]d)::bigint), 12, '0') || '70008' || lpad(to_hex(n), 15, '0'))::uuid,
				'%[2]s', '%[3]s', 'bench', decode(md5(n::text), 'hex'), 'p'
			FROM (SELECT extract(epoch FROM date_trunc('day', t)) * 1000 AS today, extract(epoch FROM t) * 1000 AS now
				FROM (SELECT clock_timestamp() AT TIME ZONE 'UTC' AS t) c) d, generate_series(0::bigint, %[1]d - 1) n`, c.old, group, oneByOne),
		"VACUUM (ANALYZE) onceward.processed_events", // now, not while something is measured
		"CHECKPOINT",
	} {
		if _, err := c.stage.pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("claim the events of before: %w", err)
		}
	}
	return nil
}

// count is the effect.
func count(ctx context.Context, tx pgx.Tx, key string) error {
	_, err := tx.Exec(ctx, "UPDATE counters SET n = n + 1 WHERE key = $1", key)
	return err
}

// events makes some that are not known yet. Their keys go up, so that no two calls wait for one
// another's rows in opposite orders.
func (c *consuming) events(n int, kind string) ([]consumer.Event, error) {
	last := int(c.next.Add(int64(n)))
	events := make([]consumer.Event, n)
	for i := range events {
		ev, err := newEvent(last - n + i)
		if err != nil {
			return nil, err
		}
		events[i].Event = record.Event{Key: ev.Key, Type: kind, AggregateType: ev.AggregateType,
			AggregateID: ev.AggregateID, Payload: ev.Payload}
	}
	return events, nil
}

func (c *consuming) tx(ctx context.Context) (int, error) {
	events, err := c.events(1, oneByOne)
	if err != nil {
		return 0, err
	}
	outcome, err := c.router.Handle(ctx, events[0])
	if err == nil && outcome != consumer.Processed {
		err = fmt.Errorf("a new event is %s", outcome)
	}
	c.applied.Add(1)
	return 1, err
}

func (c *consuming) batch(ctx context.Context) (int, error) {
	events, err := c.events(batchOf, together)
	if err != nil {
		return 0, err
	}
	for _, d := range c.router.HandleBatch(ctx, events) {
		if d.Err != nil || d.Outcome != consumer.Processed {
			return 0, errors.Join(d.Err, fmt.Errorf("a new event is %s", d.Outcome))
		}
	}
	c.applied.Add(batchOf)
	return batchOf, nil
}

// claim is what a delivery writes beside the effect.
const claim = `INSERT INTO onceward.processed_events (event_id, consumer_group, event_type, namespace, fingerprint, outcome)
	SELECT e.id, $1, $2, 'bench', e.fingerprint, 'p' FROM unnest($3::uuid[], $4::bytea[]) e (id, fingerprint)
	ORDER BY e.id ON CONFLICT DO NOTHING`

// bare claims and applies events in one transaction, as somebody would by hand.
func (c *consuming) bare(ctx context.Context, n int) (int, error) {
	events, err := c.events(n, oneByOne)
	if err != nil {
		return 0, err
	}
	ids, fingerprints := make([][16]byte, n), make([][]byte, n)
	for i, ev := range events {
		ids[i], fingerprints[i] = ev.Key.UUID(), make([]byte, 16)
	}
	err = pgx.BeginFunc(ctx, c.stage.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, claim, group+"-sql", oneByOne, ids, fingerprints); err != nil {
			return err
		}
		for _, ev := range events {
			if err := count(ctx, tx, ev.AggregateID); err != nil {
				return err
			}
		}
		return nil
	})
	c.applied.Add(int64(n))
	return n, err
}

func (c *consuming) sql(ctx context.Context) (int, error)      { return c.bare(ctx, 1) }
func (c *consuming) sqlBatch(ctx context.Context) (int, error) { return c.bare(ctx, batchOf) }

// compare demands as many effects and claims as there were events.
func (c *consuming) compare(ctx context.Context) error {
	var effects, claims int64
	err := c.stage.pool.QueryRow(ctx, `SELECT (SELECT pg_catalog.sum(n) FROM counters)::bigint,
		(SELECT pg_catalog.count(*) FROM onceward.processed_events)`).Scan(&effects, &claims)
	if err != nil {
		return fmt.Errorf("count the effects: %w", err)
	}
	if want := c.applied.Load(); effects != want || claims != want+int64(c.old) {
		return fmt.Errorf("%d events have %d effects and, beside %d of before, %d claims", want, effects, c.old, claims-int64(c.old))
	}
	return nil
}
