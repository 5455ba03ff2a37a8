package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/onceward/onceward/bench/internal/numbers"
	"github.com/onceward/onceward/bench/internal/report"
	"github.com/onceward/onceward/bench/internal/sink"
	"github.com/onceward/onceward/outbox"
)

// pacing is how events come in a workload.
type pacing struct {
	every   time.Duration // between two events
	writers int           // connections that take turns
}

var pacings = map[string]pacing{
	report.Trickle: {20 * time.Millisecond, 1},
	report.Steady:  {time.Second / 2000, 8},
}

// arrival bounds how long the last event may be on its way.
const arrival = 2 * time.Minute

// pace measures how long events are on their way that come at a pace, side by side in databases
// of their own.
func (b *bench) pace(ctx context.Context, workload string) error {
	for round := range b.plan.paces {
		for _, name := range turned(b.plan.sides(workload), round) {
			if b.connect == "" && (name == report.DebeziumTuned || name == report.DebeziumDefault) {
				continue
			}
			run, err := b.paceOne(ctx, workload, name)
			if b.leaveOut(ctx, workload, name, err) {
				continue
			}
			if err != nil {
				return fmt.Errorf("%s, round %d: %w", name, round+1, err)
			}
			run.Workload, run.Side, run.Round = workload, name, round
			b.add(run)
		}
	}
	return nil
}

// paceOne measures one side in a stage of its own.
func (b *bench) paceOne(ctx context.Context, workload, name string) (run report.Run, err error) {
	st, err := b.servers.open(ctx, workload)
	if err != nil {
		return run, err
	}
	defer func() { err = errors.Join(err, st.close(ctx)) }()
	s, err := b.side(st, name)
	if err != nil {
		return run, err
	}
	if err := s.prepare(ctx); err != nil {
		return run, fmt.Errorf("prepare: %w", err)
	}
	m := b.watch()
	defer m.sampler.Stop()
	if err := m.start(ctx, s); err != nil {
		return run, err
	}
	run, err = b.paced(ctx, st, s, m, pacings[workload])
	return run, errors.Join(err, s.stop(ctx))
}

// paced writes and listens, first for a fifth of the time without measuring.
func (b *bench) paced(ctx context.Context, st *stage, s side, m *measuring, p pacing) (run report.Run, err error) {
	starting, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err := until(starting, "the side is ready", func() (bool, error) { return s.ready(starting) }); err != nil {
		return run, err
	}
	warm := int(b.plan.pace / 5 / p.every)
	events := warm + int(b.plan.pace/p.every)
	t := newTimes(events)
	listening, hush := context.WithCancel(ctx)
	defer hush()
	group, gctx := errgroup.WithContext(listening)
	there := make(chan struct{})
	group.Go(func() error { return s.sink().Listen(gctx, func() { close(there) }, t.heard) })
	group.Go(func() error {
		defer hush()
		select {
		case <-there:
		case <-gctx.Done():
			return nil
		}
		if err := m.findBackend(gctx, s); err != nil {
			return err
		}
		if err := t.write(gctx, st, s, p, warm); err != nil {
			return err
		}
		late, cancel := context.WithTimeout(gctx, arrival)
		defer cancel()
		return until(late, "the last event has arrived", func() (bool, error) { return t.missing() == 0, nil })
	})
	if err := group.Wait(); err != nil {
		return run, err
	}
	st.written = events
	return t.run(ctx, s, m, warm)
}

// times are those of the events of one measurement.
type times struct {
	mu        sync.Mutex
	committed []time.Time     // when the producer knew
	commit    []time.Duration // how long its commit took
	arrived   []time.Time
	left      int
	began     time.Time // of what is measured
}

func newTimes(events int) *times {
	return &times{
		committed: make([]time.Time, events), commit: make([]time.Duration, events),
		arrived: make([]time.Time, events), left: events,
	}
}

// heard is told of an event at the sink.
func (t *times) heard(number int, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if number < len(t.arrived) && t.arrived[number].IsZero() {
		t.arrived[number] = at
		t.left--
	}
}

func (t *times) missing() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.left
}

// write commits the events at their pace. Each writer has the events of one remainder, so that
// those of a key, which has one writer, are committed in their order. Who is late goes on at once.
func (t *times) write(ctx context.Context, st *stage, s side, p pacing, warm int) error {
	if sink.Usual.Keys%p.writers != 0 {
		return fmt.Errorf("%d writers do not share %d keys", p.writers, sink.Usual.Keys)
	}
	began := time.Now()
	t.began = began.Add(time.Duration(warm) * p.every)
	group, gctx := errgroup.WithContext(ctx)
	for w := range p.writers {
		group.Go(func() error {
			conn, write, err := inserting(gctx, st, s)
			if err != nil {
				return err
			}
			defer conn.Close(context.WithoutCancel(gctx)) //nolint:errcheck // nothing is open on it
			for number := w; number < len(t.committed); number += p.writers {
				if err := sleep(gctx, time.Until(began.Add(time.Duration(number)*p.every))); err != nil {
					return err
				}
				if err := t.one(gctx, conn, write, number); err != nil {
					return fmt.Errorf("commit event %d: %w", number, err)
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// insert writes the event of a number.
type insert func(ctx context.Context, tx pgx.Tx, number int) error

// inserting opens a connection and says how an event is written on it.
func inserting(ctx context.Context, st *stage, s side) (*pgx.Conn, insert, error) {
	if w, ok := s.(writer); ok {
		conn, err := w.connect(ctx)
		return conn, w.write, err
	}
	conn, err := pgx.Connect(ctx, st.dsn())
	return conn, enqueue, err
}

// enqueue writes an event as a service does.
func enqueue(ctx context.Context, tx pgx.Tx, number int) error {
	event, err := newEvent(number)
	if err != nil {
		return err
	}
	_, err = outbox.Enqueue(ctx, tx, event)
	return err
}

func newEvent(number int) (outbox.Event, error) {
	key, err := outbox.NewKey("bench")
	return outbox.Event{Key: key, AggregateType: "order", AggregateID: sink.Usual.Key(number), Type: "OrderChanged",
		Payload: sink.Payload(number)}, err
}

// one commits one event, and keeps when its producer knew of it.
func (t *times) one(ctx context.Context, conn *pgx.Conn, write insert, number int) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	if err := write(ctx, tx, number); err != nil {
		return errors.Join(err, tx.Rollback(ctx))
	}
	began := time.Now()
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	t.committed[number], t.commit[number] = time.Now(), time.Since(began)
	return nil
}

// sleep waits, and returns ctx's error when that ends first.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run makes a measurement of the times, after the topic was checked.
func (t *times) run(ctx context.Context, s side, m *measuring, warm int) (report.Run, error) {
	read, err := s.sink().Read(ctx, len(t.arrived))
	if err != nil {
		return report.Run{}, err
	}
	last := t.committed[len(t.committed)-1]
	run := m.between(len(t.arrived)-warm, t.began, last)
	run.Batch = read.PerBatch()
	run.Latency = t.latency(warm)
	return run, nil
}

// latency leaves out the first events, before which the side had nothing to do.
func (t *times) latency(warm int) *report.Latency {
	var way, own []float64
	greatest := math.Inf(-1)
	for i := warm; i < len(t.arrived); i++ {
		// An event may be with the consumer before its producer has woken up.
		d := float64(max(0, t.arrived[i].Sub(t.committed[i]))) / float64(time.Millisecond)
		way = append(way, d)
		own = append(own, float64(t.commit[i])/float64(time.Millisecond))
		greatest = max(greatest, d)
	}
	return &report.Latency{P50: numbers.Median(way), P99: numbers.Quantile(way, 0.99), Max: greatest,
		CommitP50: numbers.Median(own), CommitP99: numbers.Quantile(own, 0.99)}
}
