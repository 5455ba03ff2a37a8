package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/bench/internal/report"
	"github.com/onceward/onceward/bench/internal/sink"
	"github.com/onceward/onceward/internal/process"
)

// polling is what many teams have: a table, and a program that asks it for what is new. The
// table is in a database of its own, so that no walsender has to decode its log.
type polling struct {
	stage   *stage // of the events that the others read
	own     *stage
	topic   *sink.Topic
	has     int // events that its table has, or had
	process *process.Process
}

func (p *polling) sink() *sink.Topic { return p.topic }
func (p *polling) logFile() string   { return p.stage.path("polling.log") }

// backend is the session in which it asks.
func (p *polling) backend(ctx context.Context) (int, error) {
	var pid int
	err := p.own.pool.QueryRow(ctx, "SELECT pid FROM pg_catalog.pg_stat_activity WHERE datname = $1 AND application_name = $2",
		p.own.name, pollerName).Scan(&pid)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	return pid, err
}

func (p *polling) prepare(ctx context.Context) (err error) {
	if p.topic, err = p.stage.topic(ctx, report.Polling); err != nil {
		return err
	}
	if p.own, err = p.stage.servers.open(ctx, "polling"); err != nil {
		return err
	}
	p.stage.inner = append(p.stage.inner, p.own)
	_, err = p.own.pool.Exec(ctx, "CREATE TABLE polled (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key text NOT NULL, payload bytea NOT NULL)")
	return err
}

// catchUp fills the table with the backlog.
func (p *polling) catchUp(ctx context.Context, below int) error {
	sql := fmt.Sprintf("INSERT INTO polled (key, payload) SELECT %s, %s FROM pg_catalog.generate_series(%d, %d) n",
		sink.Usual.KeySQL("n"), sink.Usual.PayloadSQL("n"), p.has, below-1)
	p.has = below
	if _, err := p.own.pool.Exec(ctx, sql); err != nil {
		return fmt.Errorf("fill the polled table: %w", err)
	}
	return p.tidy(ctx, "CHECKPOINT")
}

// tidy has autovacuum find nothing to do beside what is measured next.
func (p *polling) tidy(ctx context.Context, and ...string) error {
	for _, sql := range append([]string{"VACUUM (ANALYZE) polled"}, and...) {
		if _, err := p.own.pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("tidy the polled table: %w", err)
		}
	}
	return nil
}

// write implements writer.
func (p *polling) write(ctx context.Context, tx pgx.Tx, number int) error {
	_, err := tx.Exec(ctx, "INSERT INTO polled (key, payload) VALUES ($1, $2)", sink.Usual.Key(number), sink.Payload(number))
	return err
}

// connect implements writer.
func (p *polling) connect(ctx context.Context) (*pgx.Conn, error) {
	return pgx.Connect(ctx, p.own.dsn())
}

func (p *polling) start(context.Context) (_ *process.Process, err error) {
	t := task{Kind: report.Polling, DSN: p.own.dsn(), Brokers: p.stage.servers.kafka.Addrs(), Topic: p.topic.Name}
	p.process, err = startTask(t, p.logFile())
	return p.process, err
}

func (p *polling) ready(ctx context.Context) (bool, error) {
	pid, err := p.backend(ctx)
	return pid != 0, err
}

func (p *polling) finished(ctx context.Context, below int) (bool, error) {
	select {
	case <-p.process.Done():
		return false, fmt.Errorf("the polling publisher ended: %w%s", p.process.Err(), process.Tail(p.logFile()))
	default:
	}
	return written(ctx, p.topic, below)
}

func (p *polling) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	return errors.Join(p.process.Stop(ctx, syscall.SIGTERM), p.tidy(ctx))
}

// The polling publisher's settings.
const (
	pollerName = "polling"
	pollBatch  = 1000
	pollPause  = 10 * time.Millisecond // when there was nothing
)

// poller is its process: take the oldest rows, publish them, wait for the acknowledgements,
// delete them, in one transaction. A crash between the last two publishes them again.
type poller struct{ task task }

func (p poller) run(ctx context.Context) error {
	conf, err := pgx.ParseConfig(p.task.DSN)
	if err != nil {
		return errors.New("read the DSN of the task")
	}
	conf.RuntimeParams["application_name"] = pollerName
	conn, err := pgx.ConnectConfig(ctx, conf)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is open on it
	producer, err := sarama.NewSyncProducer(p.task.Brokers, pollingConfig())
	if err != nil {
		return fmt.Errorf("connect to Kafka: %w", err)
	}
	defer producer.Close() //nolint:errcheck // it holds nothing
	for ctx.Err() == nil {
		n, err := p.once(ctx, conn, producer)
		if err != nil {
			return err
		}
		if n > 0 {
			continue
		}
		select {
		case <-time.After(pollPause):
		case <-ctx.Done():
		}
	}
	return nil
}

func pollingConfig() *sarama.Config {
	c := sarama.NewConfig()
	c.Version = sarama.V2_8_0_0
	c.Net.MaxOpenRequests = 1
	c.Producer.Idempotent = true
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Producer.Return.Successes = true
	c.Producer.Compression = sarama.CompressionLZ4
	return c
}

// once publishes one batch, also when the process is told to stop meanwhile: what is published is
// deleted.
func (p poller) once(ctx context.Context, conn *pgx.Conn, producer sarama.SyncProducer) (n int, err error) {
	ctx = context.WithoutCancel(ctx)
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, "SELECT seq, key, payload FROM polled ORDER BY seq LIMIT $1 FOR UPDATE SKIP LOCKED", pollBatch)
		if err != nil {
			return err
		}
		var messages []*sarama.ProducerMessage
		var seqs []int64
		var seq int64
		var key string
		var payload []byte
		_, err = pgx.ForEachRow(rows, []any{&seq, &key, &payload}, func() error {
			seqs = append(seqs, seq)
			messages = append(messages, &sarama.ProducerMessage{Topic: p.task.Topic, Key: sarama.StringEncoder(key),
				Value: sarama.ByteEncoder(append([]byte(nil), payload...))})
			return nil
		})
		n = len(seqs)
		if err != nil || n == 0 {
			return err
		}
		if err := producer.SendMessages(messages); err != nil {
			return fmt.Errorf("publish %d events: %w", n, err)
		}
		_, err = tx.Exec(ctx, "DELETE FROM polled WHERE seq = ANY($1)", seqs)
		return err
	})
	if err != nil {
		return n, fmt.Errorf("publish a batch: %w", err)
	}
	return n, nil
}
