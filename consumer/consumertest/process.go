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
)

// process is one start of the service, with a pool of its own.
type process struct {
	network *network
	db      *pgxpool.Pool
	router  *consumer.Router
}

// spawn starts one.
func (w *world) spawn(ctx context.Context) (*process, error) {
	cfg, err := pgxpool.ParseConfig(w.DSN)
	if err != nil {
		return nil, fmt.Errorf("read the DSN: %w", err)
	}
	p := &process{network: &network{links: make(map[*link]struct{})}}
	cfg.MaxConns = maxConns
	cfg.ConnConfig.Database = w.database
	cfg.ConnConfig.Tracer = p.network
	cfg.ConnConfig.AfterNetConnect = p.network.join
	if p.db, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, fmt.Errorf("make the pool of the service: %w", err)
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
func (p *process) deliver(ctx context.Context, recs []record.Record) []consumer.Delivery {
	if p.router.Peek(recs[0]).Batch != nil {
		return p.router.HandleRecords(ctx, recs)
	}
	deliveries := make([]consumer.Delivery, len(recs))
	for i, rec := range recs {
		deliveries[i].Outcome, deliveries[i].Err = p.router.HandleRecord(ctx, rec)
	}
	return deliveries
}

// restart ends the process of the world, if there is one, and starts another.
func (w *world) restart(ctx context.Context) (err error) {
	if w.process != nil {
		err = w.process.stop()
		w.process = nil
	}
	if err == nil {
		w.process, err = w.spawn(ctx)
	}
	return err
}

// bury waits until the server has ended the sessions whose connections were cut, so that
// they hold no lock any more.
func (w *world) bury(ctx context.Context, p *process) error {
	for _, session := range p.network.buried() {
		if _, err := w.reader.Exec(ctx, "SELECT pg_catalog.pg_terminate_backend($1, 10000)", int32(session)); err != nil {
			return fmt.Errorf("wait for the end of a session: %w", err)
		}
	}
	return nil
}

// settle delivers records, again and again as Kafka does, until all are acknowledged. The
// leases of an attempt that died run out in between.
func (w *world) settle(ctx context.Context, n int, how string, recs []record.Record) ([]consumer.Delivery, error) {
	const most = 10
	var last []consumer.Delivery
	for range most {
		last = w.process.deliver(ctx, recs)
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("deliver event %d: %w", n, err)
		}
		if !slices.ContainsFunc(last, func(d consumer.Delivery) bool { return !d.Finished() }) {
			return last, nil
		}
		if _, err := w.reader.Exec(ctx, "UPDATE onceward.fences SET lease_until = lease_until - interval '1 day' WHERE completed_at IS NULL"); err != nil {
			return nil, fmt.Errorf("let leases run out: %w", err)
		}
	}
	for _, d := range last {
		if !d.Finished() {
			return nil, w.broken(n, how, fmt.Sprintf("delivered %d times more, it is never acknowledged: %s, error: %v", most, d.Outcome, d.Err),
				"find out why the handler refuses it; what it did was rolled back.")
		}
	}
	return last, nil
}

// apply is settle for events that must be applied, now or before, and none given up.
func (w *world) apply(ctx context.Context, n int, how string, recs []record.Record) error {
	deliveries, err := w.settle(ctx, n, how, recs)
	for i, d := range deliveries {
		if d.Outcome == consumer.Processed || d.Outcome == consumer.Duplicate {
			continue
		}
		why := d.Outcome.String()
		if d.Outcome == consumer.DeadLettered {
			if why, err = w.letter(ctx, recs[i].Source); err != nil {
				return err
			}
		}
		return w.broken(n, how, "it was not applied: "+why, "find out why. Exercise needs events that the handlers apply; a failure that passes must not make a dead letter at once.")
	}
	return err
}

// letter is what a dead letter says.
func (w *world) letter(ctx context.Context, at record.Source) (text string, err error) {
	err = w.reader.QueryRow(ctx, `SELECT pg_catalog.concat('dead letter ', reason, ': ', error) FROM onceward.consumer_dead_letters
		WHERE topic = $1 AND kafka_partition = $2 AND kafka_offset = $3`, at.Topic, at.Partition, at.Offset).Scan(&text)
	if err != nil {
		err = fmt.Errorf("read a dead letter: %w", err)
	}
	return text, err
}
