package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/bench/internal/report"
	"github.com/onceward/onceward/bench/internal/sink"
	"github.com/onceward/onceward/internal/process"
)

// side is one of those that are compared. A side belongs to a stage. Its methods are called by
// one goroutine, in this order: prepare once, before the events; then, as often as wanted, start,
// finished until it says yes, and stop.
type side interface {
	// prepare makes what has to be there before the first event: a slot, a topic, a table.
	prepare(ctx context.Context) error
	// start starts the side's process.
	start(ctx context.Context) (*process.Process, error)
	// ready reports whether the process takes events up at once.
	ready(ctx context.Context) (bool, error)
	// finished reports whether the side has dealt with all events below a number.
	finished(ctx context.Context, below int) (bool, error)
	// stop ends the process in order, so that it goes on there the next time.
	stop(ctx context.Context) error
	// backend returns the process of PostgreSQL that serves it, 0 when there is none: the walsender
	// of its slot, for most.
	backend(ctx context.Context) (pid int, err error)
	// sink is the topic that it writes; nil when it writes none.
	sink() *sink.Topic
}

// A slotMaker is a side whose process makes its slot when it is started first. Before a backlog it
// does that; events that come at a pace come after the start anyway.
type slotMaker interface {
	makeSlot(ctx context.Context) error
}

// A writer is a side that events are given to otherwise than by the outbox.
type writer interface {
	// catchUp gives it the events below a number that it has not got, before it is measured.
	catchUp(ctx context.Context, below int) error
	// write commits one event in a transaction of its own table.
	write(ctx context.Context, tx pgx.Tx, number int) error
	// connect opens a connection to where that is.
	connect(ctx context.Context) (*pgx.Conn, error)
}

// side makes one by its name.
func (b *bench) side(st *stage, name string) (side, error) {
	switch name {
	case report.Ceiling, report.Reader:
		return &reader{stage: st, name: name}, nil
	case report.Again:
		return &relay{stage: st, name: name, binary: b.plan.again}, nil
	case report.Idempotent, report.ExactlyOnce:
		return &relay{stage: st, name: name, binary: b.plan.relay}, nil
	case report.Polling:
		return &polling{stage: st}, nil
	case report.DebeziumTuned, report.DebeziumDefault:
		return &debezium{stage: st, name: name, jars: b.connect}, nil
	}
	return nil, fmt.Errorf("there is no side %q", name)
}

// sides makes those of a workload that can be had here, each with its slot.
func (b *bench) sides(ctx context.Context, st *stage, workload string) ([]string, map[string]side, error) {
	var names []string
	all := make(map[string]side)
	for _, name := range b.plan.sides(workload) {
		if b.connect == "" && (name == report.DebeziumTuned || name == report.DebeziumDefault) {
			continue
		}
		s, err := b.side(st, name)
		if err != nil {
			return nil, nil, err
		}
		if err := s.prepare(ctx); err != nil {
			return nil, nil, fmt.Errorf("prepare %s: %w", name, err)
		}
		if maker, ok := s.(slotMaker); ok {
			if err := maker.makeSlot(ctx); err != nil {
				return nil, nil, fmt.Errorf("make the slot of %s: %w", name, err)
			}
		}
		names, all[name] = append(names, name), s
	}
	return names, all, nil
}

// leaveOut notes why a side that is not ours cannot go on, and reports that: what others do at a
// restart, or cannot do here, is no reason to measure nothing. An error of ours is one of the run.
func (b *bench) leaveOut(ctx context.Context, workload, name string, err error) bool {
	foreign := name == report.Polling || name == report.DebeziumTuned || name == report.DebeziumDefault
	if err == nil || !foreign || ctx.Err() != nil {
		return false
	}
	b.note("%s was left out of %s: %v", name, workload, err)
	return true
}

// createSlot makes a slot of pgoutput.
func (st *stage) createSlot(ctx context.Context, name string) error {
	_, err := st.pool.Exec(ctx, "SELECT pg_catalog.pg_create_logical_replication_slot($1, 'pgoutput')", name)
	if err != nil {
		return fmt.Errorf("make slot %s: %w", name, err)
	}
	return nil
}

// drop removes the slot of a side that reads no more: the log of all that comes would stay for it.
func (st *stage) drop(ctx context.Context, s side) error {
	reader, ok := s.(interface{ slot() string })
	if !ok {
		return nil
	}
	if err := free(ctx, s); err != nil {
		return err
	}
	_, err := st.pool.Exec(ctx, `SELECT pg_catalog.pg_drop_replication_slot(slot_name)
		FROM pg_catalog.pg_replication_slots WHERE slot_name = $1`, reader.slot())
	if err != nil {
		return fmt.Errorf("drop slot %s: %w", reader.slot(), err)
	}
	return nil
}

// walsender returns the process id of who reads a slot; 0: nobody does.
func (st *stage) walsender(ctx context.Context, slot string) (int, error) {
	var pid *int
	err := st.pool.QueryRow(ctx, "SELECT active_pid FROM pg_catalog.pg_replication_slots WHERE slot_name = $1", slot).Scan(&pid)
	switch {
	case errors.Is(err, pgx.ErrNoRows): // a relay makes its slot by itself
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("look at slot %s: %w", slot, err)
	case pid == nil:
		return 0, nil
	}
	return *pid, nil
}

// written reports whether a topic holds all events below a number, by the ends of its
// partitions; markers of transactions count, too.
func written(ctx context.Context, t *sink.Topic, below int) (bool, error) {
	records, err := t.Written(ctx)
	return err == nil && records >= int64(below), err
}

// startLimit bounds the time until a side is ready, on a busy machine too.
const startLimit = 3 * time.Minute

// stopGrace bounds the end of a side's process.
const stopGrace = time.Minute
