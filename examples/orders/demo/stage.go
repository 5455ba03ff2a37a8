package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/onceward/onceward/examples/orders"
	"github.com/onceward/onceward/internal/pgserver"
	"github.com/onceward/onceward/migrations"
)

const (
	relayName  = "demo"
	topic      = orders.Namespace + "." + orders.AggregateType
	partitions = 6
)

// stage is what the play needs: the servers, the tables, the relay.
type stage struct {
	dir      string
	postgres *pgserver.Server
	kafka    *kfake.Cluster
	db       *pgxpool.Pool
	relay    *relayProcess
}

func startStage(ctx context.Context) (_ *stage, err error) {
	s := new(stage)
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop(ctx))
		}
	}()
	if s.dir, err = os.MkdirTemp("", "onceward-demo-"); err != nil {
		return s, err
	}
	say("starting PostgreSQL (a download, the first time, where the system has none)")
	if s.postgres, err = pgserver.Start(ctx, pgserver.Options{}); err != nil {
		return s, err
	}
	say("PostgreSQL %d on port %d", s.postgres.Version(), s.postgres.Port())
	if s.kafka, err = kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(partitions, topic)); err != nil {
		return s, fmt.Errorf("start kfake: %w", err)
	}
	if s.db, err = pgxpool.New(ctx, s.postgres.DSN("postgres")); err != nil {
		return s, err
	}
	if err = s.install(ctx); err != nil {
		return s, err
	}
	say("building the relay")
	s.relay, err = buildRelay(ctx, s)
	return s, err
}

// install makes Onceward's tables for both sides, and the shop's.
func (s *stage) install(ctx context.Context) error {
	for _, cfg := range []migrations.Config{{Pool: s.db, Side: migrations.Outbox, Relay: relayName},
		{Pool: s.db, Side: migrations.Consumer}} {
		m, err := migrations.New(cfg)
		if err != nil {
			return err
		}
		if _, err := m.Up(ctx); err != nil {
			return err
		}
	}
	if _, err := s.db.Exec(ctx, orders.Schema); err != nil {
		return fmt.Errorf("make the shop's tables: %w", err)
	}
	return nil
}

// stop ends everything that was started, in reverse order.
func (s *stage) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	var errs []error
	if s.relay != nil {
		errs = append(errs, s.relay.stop(ctx))
	}
	if s.db != nil {
		s.db.Close()
	}
	if s.kafka != nil {
		s.kafka.Close()
	}
	if s.postgres != nil {
		errs = append(errs, s.postgres.Stop(ctx))
	}
	if s.dir != "" {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	return errors.Join(errs...)
}

func (s *stage) path(name string) string { return filepath.Join(s.dir, name) }

func say(format string, args ...any) { fmt.Printf("demo: "+format+"\n", args...) }
