package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/bench/internal/report"
	"github.com/onceward/onceward/bench/internal/sink"
	"github.com/onceward/onceward/outbox"
)

// manyEvents is how many EnqueueMany has in a call.
const manyEvents = 100

// produce measures the producer's side: a transaction with one event by Enqueue, with a hundred by
// EnqueueMany, and with the INSERT that somebody would write by hand.
func produce(ctx context.Context, b *bench) (err error) {
	st, err := b.servers.open(ctx, report.Enqueue)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.close(ctx)) }()
	p := &producing{stage: st}
	return calling(ctx, b, report.Enqueue, 1, map[string]call{
		report.Insert: p.insert, report.EnqueueOne: p.enqueue, report.EnqueueMany: p.many,
	})
}

// producing is a service that writes events.
type producing struct {
	stage *stage
	next  atomic.Int64
}

// in runs a transaction that does not wait for the disk, which would hide what the call costs.
func (p *producing) in(ctx context.Context, do func(pgx.Tx) error) error {
	return quickly(ctx, p.stage.pool, do)
}

// quickly runs a transaction whose commit does not wait for the disk.
func quickly(ctx context.Context, pool *pgxpool.Pool, do func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{BeginQuery: "BEGIN; SET LOCAL synchronous_commit = off"}, do)
}

func (p *producing) insert(ctx context.Context) (int, error) {
	number := int(p.next.Add(1))
	key, err := outbox.NewKey("bench")
	if err != nil {
		return 0, err
	}
	err = p.in(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload)
			VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING`,
			key.UUID(), "bench", "order", sink.Usual.Key(number), "OrderChanged", sink.Payload(number))
		return err
	})
	return 1, err
}

func (p *producing) enqueue(ctx context.Context) (int, error) {
	number := int(p.next.Add(1))
	return 1, p.in(ctx, func(tx pgx.Tx) error { return enqueue(ctx, tx, number) })
}

func (p *producing) many(ctx context.Context) (int, error) {
	events := make([]outbox.Event, manyEvents)
	for i := range events {
		var err error
		if events[i], err = newEvent(int(p.next.Add(1))); err != nil {
			return 0, err
		}
	}
	return len(events), p.in(ctx, func(tx pgx.Tx) error {
		results, err := outbox.EnqueueMany(ctx, tx, events)
		if err == nil && len(results) != len(events) {
			err = fmt.Errorf("%d results of %d events", len(results), len(events))
		}
		return err
	})
}
