package consumertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/record"
)

const (
	// maxConns is for handlers that take connections beside that of their delivery.
	maxConns = 24
	// maxPause is how long a process that ends waits for what its handlers still have.
	maxPause = 10 * time.Second
	// maxDeliveries is how often a message comes again before it counts as refused.
	maxDeliveries = 10
)

// process is one start of the service, with a pool of its own.
type process struct {
	network *network
	db      *pgxpool.Pool
	router  *consumer.Router
}

func (w *world) spawn(ctx context.Context) (*process, error) {
	p := &process{network: &network{links: make(map[*link]struct{})}}
	var err error
	p.db, err = w.connect(ctx, w.database, func(cfg *pgxpool.Config) {
		cfg.MaxConns, cfg.AfterConnect, cfg.ConnConfig.AfterNetConnect = maxConns, p.network.joined, p.network.join
	})
	if err != nil {
		return nil, err
	}
	p.router, err = w.Start(ctx, p.db)
	if err == nil && p.router == nil {
		err = errors.New("it returned no Router")
	}
	if err == nil {
		err = p.router.Err()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the service: %w", err), p.stop())
	}
	return p, nil
}

// stop ends the process when its handlers have given back what they had of the pool.
func (p *process) stop() error {
	closed := make(chan struct{})
	go func() {
		p.db.Close()
		close(closed)
	}()
	patience := time.NewTimer(maxPause)
	defer patience.Stop()
	select {
	case <-closed:
		return nil
	case <-patience.C:
		p.network.kill()
		return fmt.Errorf("a handler has returned and still holds a connection of the pool after %s; close its rows, release what it has acquired", maxPause)
	}
}

// deliver gives records to the router, as a member of the group does.
func (p *process) deliver(ctx context.Context, recs ...record.Record) []consumer.Delivery {
	if p.router.Peek(recs[0]).Batch != nil {
		return p.router.HandleRecords(ctx, recs)
	}
	deliveries := make([]consumer.Delivery, len(recs))
	for i, rec := range recs {
		deliveries[i].Outcome, deliveries[i].Err = p.router.HandleRecord(ctx, rec)
	}
	return deliveries
}

// restart ends the process, if there is one, and starts another.
func (w *world) restart(ctx context.Context) {
	if w.process != nil && w.err == nil {
		w.err = w.process.stop()
	}
	if w.err == nil {
		w.process, w.err = w.spawn(ctx)
	}
}

// bury waits until the server has ended the sessions of a process whose connections were
// cut, so that they hold no lock any more.
func (w *world) bury(ctx context.Context, p *process) {
	for _, session := range p.network.severed() {
		w.exec(ctx, "SELECT pg_catalog.pg_terminate_backend($1, 10000)", int32(session))
	}
}

// settle delivers records again and again, as Kafka does, until all are acknowledged. The
// leases of an attempt that died run out in between.
func (w *world) settle(ctx context.Context, n int, how string, recs []record.Record) (ended []consumer.Delivery) {
	unfinished := func(d consumer.Delivery) bool { return !d.Finished() }
	for times := 0; w.err == nil; times++ {
		ended = w.process.deliver(ctx, recs...)
		at := slices.IndexFunc(ended, unfinished)
		switch {
		case at < 0:
			return ended
		case ctx.Err() != nil:
			w.err = fmt.Errorf("deliver event %d: %w", n, ctx.Err())
		case errors.Is(ended[at].Err, consumer.ErrHandlerTimeout): // each time would take as long
			w.broken(n, how, ended[at].Err.Error(), "find out what it waits for: a connection of the pool that was never given back (rows that are not closed), a lock or a channel that an earlier delivery has kept.")
		case times == maxDeliveries:
			why := "it is still " + ended[at].Outcome.String()
			if ended[at].Err != nil {
				why = ended[at].Err.Error()
			}
			w.broken(n, how, fmt.Sprintf("after %d deliveries it is not acknowledged: %s", times, why), "find out why the handler refuses it. What it did with tx was rolled back each time.")
		default:
			w.exec(ctx, "UPDATE onceward.fences SET lease_until = 'epoch' WHERE completed_at IS NULL")
		}
	}
	return nil
}

// apply is settle for events of which each has to be applied, now or before.
func (w *world) apply(ctx context.Context, n int, how string, recs []record.Record) {
	ended := w.settle(ctx, n, how, recs)
	for i, rec := range recs {
		if w.err != nil {
			return
		}
		outcome, at := ended[i].Outcome, rec.Source
		if outcome == consumer.Processed || outcome == consumer.Duplicate {
			continue
		}
		why := outcome.String()
		if outcome == consumer.DeadLettered {
			err := w.reader.QueryRow(ctx, "SELECT pg_catalog.concat('a dead letter (', reason, '): ', error) FROM onceward.consumer_dead_letters WHERE topic OPERATOR(pg_catalog.=) $1 AND kafka_offset OPERATOR(pg_catalog.=) $2",
				at.Topic, at.Offset).Scan(&why)
			if err != nil {
				why = fmt.Sprintf("a dead letter that cannot be read: %v", err)
			}
		}
		w.broken(n, how, "it was not applied: "+why, "find out why. Exercise wants events that the handlers apply, and what may pass must not make a dead letter at once.")
	}
}
