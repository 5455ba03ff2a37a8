package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/bench/internal/sink"
	"github.com/onceward/onceward/internal/kafkaproxy"
	"github.com/onceward/onceward/internal/kafkaserver"
	"github.com/onceward/onceward/internal/pgserver"
	"github.com/onceward/onceward/migrations"
)

// template is the database that stages are copies of.
const template = "bench_template"

// publication is that of every slot.
const publication = "onceward_bench"

// servers are what everything runs on.
type servers struct {
	dir          string // for configurations and logs
	postgres     *pgserver.Server
	kafka        *kafkaserver.Cluster
	kafkaVersion string
	quick        bool
	network      *kafkaproxy.Network // what Kafka stands behind; nil: nothing
	stages       int
}

// startServers starts both, and installs the tables of both sides in the template.
func startServers(ctx context.Context, quick bool) (_ *servers, err error) {
	s := &servers{kafkaVersion: kafkaserver.DefaultVersion, quick: quick}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop(ctx))
		}
	}()
	if s.dir, err = os.MkdirTemp("", "onceward-bench-"); err != nil {
		return s, fmt.Errorf("make a folder for configurations and logs: %w", err)
	}
	// Commits wait for the disk as in production. Checkpoints come between the measurements.
	s.postgres, err = pgserver.Start(ctx, pgserver.Options{Settings: map[string]string{
		"fsync": "on", "shared_buffers": "256MB", "max_wal_size": "16GB", "checkpoint_timeout": "1h",
		"max_replication_slots": "40", "max_wal_senders": "40",
	}})
	if err != nil {
		return s, err
	}
	if s.kafka, err = s.startKafka(ctx, nil); err != nil {
		return s, err
	}
	return s, s.install(ctx)
}

// startKafka starts a broker with the heap and the collector of Kafka's own scripts; the serial one
// stopped it for 35 to 78 ms each five seconds at 2,000 events a second. In a quick run it compiles
// with one compiler: the other's work would be in the figures.
func (s *servers) startKafka(ctx context.Context, advertise func(int, string) string) (*kafkaserver.Cluster, error) {
	return kafkaserver.Start(ctx, kafkaserver.Options{Advertise: advertise, JVM: s.jvm()})
}

func (s *servers) jvm() []string {
	options := []string{"-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"}
	if s.quick {
		options = append(options, "-XX:TieredStopAtLevel=1")
	}
	return options
}

// far are the same servers with a Kafka of its own, behind a proxy. The caller calls hangUp.
func (s *servers) far(ctx context.Context) (_ *servers, err error) {
	f := *s
	f.network = kafkaproxy.New()
	var refused error
	f.kafka, err = s.startKafka(ctx, func(_ int, address string) string {
		link, err := f.network.Add(ctx, address)
		if refused = err; err != nil {
			return address
		}
		return link.Addr()
	})
	if err = errors.Join(refused, err); err != nil {
		return nil, errors.Join(err, f.hangUp(ctx))
	}
	return &f, nil
}

// stretch makes a way to Kafka and back take a time.
func (s *servers) stretch(way time.Duration) {
	for _, link := range s.network.Links() {
		link.Shape(kafkaproxy.Up, kafkaproxy.Traffic{Delay: way / 2})
		link.Shape(kafkaproxy.Down, kafkaproxy.Traffic{Delay: way / 2})
	}
}

// hangUp ends the Kafka of far and its proxy.
func (s *servers) hangUp(ctx context.Context) (err error) {
	if s.kafka != nil {
		err = s.kafka.Stop(context.WithoutCancel(ctx))
	}
	return errors.Join(err, s.network.Close())
}

func (s *servers) install(ctx context.Context) error {
	if err := s.execute(ctx, "CREATE DATABASE "+template); err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, s.postgres.DSN(template))
	if err != nil {
		return fmt.Errorf("connect to the template: %w", err)
	}
	defer pool.Close()
	for _, cfg := range []migrations.Config{{Pool: pool, Side: migrations.Outbox, Relay: "bench"}, {Pool: pool, Side: migrations.Consumer}} {
		m, err := migrations.New(cfg)
		if err != nil {
			return err
		}
		if _, err := m.Up(ctx); err != nil {
			return fmt.Errorf("install the tables: %w", err)
		}
	}
	return nil
}

// execute runs one statement outside every stage.
func (s *servers) execute(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, s.postgres.DSN("postgres"))
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(ctx))
}

// stop ends both and removes what they left.
func (s *servers) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	var errs []error
	if s.kafka != nil {
		errs = append(errs, s.kafka.Stop(ctx))
	}
	if s.postgres != nil {
		errs = append(errs, s.postgres.StopImmediate(ctx))
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// stage is a database with the tables of both sides, and the topics of those who publish
// what is in it. What one workload leaves is not in the way of another.
type stage struct {
	servers *servers
	name    string
	pool    *pgxpool.Pool
	shape   sink.Shape // of its events
	topics  []*sink.Topic
	inner   []*stage // of sides that need one of their own
	written int      // events, from number 0
}

// open makes a stage.
func (s *servers) open(ctx context.Context, name string) (*stage, error) {
	s.stages++
	st := &stage{servers: s, shape: sink.Usual, name: fmt.Sprintf("bench_%d_%s", s.stages, strings.ReplaceAll(name, "-", "_"))}
	if err := s.execute(ctx, fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s", st.name, template)); err != nil {
		return nil, fmt.Errorf("make a database: %w", err)
	}
	conf, err := pgxpool.ParseConfig(st.dsn())
	if err != nil {
		return nil, fmt.Errorf("connect to database %s: %w", st.name, err)
	}
	conf.MaxConns = 16
	st.pool, err = pgxpool.NewWithConfig(ctx, conf)
	if err != nil {
		return nil, fmt.Errorf("connect to database %s: %w", st.name, err)
	}
	return st, nil
}

func (st *stage) dsn() string { return st.servers.postgres.DSN(st.name) }

// path is a place for a file of the stage.
func (st *stage) path(name string) string { return filepath.Join(st.servers.dir, st.name+"-"+name) }

// topic makes a topic of the stage.
func (st *stage) topic(ctx context.Context, side string) (*sink.Topic, error) {
	t, err := sink.Create(ctx, st.servers.kafka.Addrs(), st.name+"."+side, st.shape)
	if err == nil {
		st.topics = append(st.topics, t)
	}
	return t, err
}

// close drops topics, slots and database: the log of what was measured goes with them.
func (st *stage) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	var errs []error
	for _, inner := range st.inner {
		errs = append(errs, inner.close(ctx))
	}
	for _, t := range st.topics {
		errs = append(errs, t.Remove(ctx))
	}
	st.pool.Close()
	var held error
	err := until(ctx, "the slots are free", func() (bool, error) {
		held = st.servers.execute(ctx, fmt.Sprintf(`SELECT pg_catalog.pg_drop_replication_slot(slot_name)
			FROM pg_catalog.pg_replication_slots WHERE database = '%s'`, st.name))
		return held == nil, nil // a walsender ends a moment after its process
	})
	if err != nil {
		err = errors.Join(err, held)
	} else {
		err = st.servers.execute(ctx, fmt.Sprintf("DROP DATABASE %s WITH (FORCE)", st.name))
	}
	return errors.Join(append(errs, err)...)
}

// until asks until the answer is yes, ctx ends, or the question fails.
func until(ctx context.Context, what string, yes func() (bool, error)) error {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		ok, err := yes()
		if err != nil || ok {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, ctx.Err())
		}
	}
}

// poll is the time between two questions: few enough to cost nothing.
const poll = 50 * time.Millisecond
