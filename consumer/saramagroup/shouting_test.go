package saramagroup_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/consumer/saramagroup"
)

// shouting is a Transform in a process of its own, until SIGTERM.
func shouting(brokers, defect string) error {
	if dir := os.Getenv("ONCEWARD_SHOUT_TRACE"); dir != "" {
		if err := traceInto(dir); err != nil {
			return err
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	cfg := saramagroup.TransformConfig{
		Topics: []string{topic}, Insecure: true, ClientID: fmt.Sprint("shouting-", os.Getpid()),
		CommitInterval: 50 * time.Millisecond, SessionTimeout: 3 * time.Second, TransactionTimeout: time.Minute,
		DrainTimeout: 2 * time.Second, RetryMin: 10 * time.Millisecond, RetryMax: 500 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)).With("pid", os.Getpid()),
	}
	switch defect {
	case "keep-producer":
		cfg = cfg.KeepProducer()
	case "outside":
		cfg = cfg.Outside()
	}
	return saramagroup.Transform(ctx, strings.Split(brokers, ","), "shouting", shout, cfg)
}

// traceInto has sarama log into a file of this process.
func traceInto(dir string) error {
	f, err := os.Create(filepath.Join(dir, fmt.Sprint("sarama-", os.Getpid(), ".log")))
	if err != nil {
		return err
	}
	sarama.Logger = slog.NewLogLogger(slog.NewTextHandler(f, nil), slog.LevelInfo)
	sarama.DebugLogger = sarama.Logger
	return nil
}
