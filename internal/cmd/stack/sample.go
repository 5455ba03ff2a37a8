package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/kafkaserver"
	"github.com/onceward/onceward/internal/operator/kafka"
	"github.com/onceward/onceward/internal/pgserver"
	"github.com/onceward/onceward/internal/process"
	"github.com/onceward/onceward/outbox"
)

const (
	sampleNamespace  = "payments"
	sampleAggregate  = "invoice"
	sampleTopic      = sampleNamespace + "." + sampleAggregate
	samplePartitions = 3
	sampleTimeout    = time.Minute
	sampleInterval   = 200 * time.Millisecond
)

// errEarly is of a relay that ended by itself and called that a success.
var errEarly = errors.New("it should have waited for a signal")

// sample enqueues an event, lets a relay of its own publish it, and returns when it
// has been read from Kafka.
func (s *stack) sample(ctx context.Context, postgres *pgserver.Server, cluster *kafkaserver.Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	if err := cluster.CreateTopic(ctx, sampleTopic, samplePartitions, nil); err != nil {
		return err
	}
	key, err := enqueueSample(ctx, postgres.DSN(sides[0].database))
	if err != nil {
		return err
	}
	logFile := s.path("sample.log")
	relay, err := process.Start(process.Spec{
		Path: s.program("relay"), Args: []string{"run", "--config", s.path("relay.yaml")}, LogFile: logFile, DeathSignal: syscall.SIGKILL,
	})
	if err != nil {
		return err
	}
	search := kafka.Search{Brokers: cluster.Addrs(), Topic: sampleTopic, Key: key.String(), From: s.began}
	found, err := awaitCopy(ctx, relay, search)
	if err != nil {
		relay.Kill()
		return fmt.Errorf("wait for the sample event in topic %s: %w%s", sampleTopic, err, process.Tail(logFile))
	}
	if err := relay.Stop(ctx, syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop the sample's relay: %w", err)
	}
	s.say("event %s has arrived: topic %s, partition %d, offset %d", key, sampleTopic, found.Partition, found.Offset)
	return nil
}

func enqueueSample(ctx context.Context, dsn string) (outbox.Key, error) {
	key, err := outbox.NewKey(sampleNamespace)
	if err != nil {
		return key, err
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return key, fmt.Errorf("connect to enqueue the sample event: %w", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // the transaction has told its result
	return key, pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := outbox.Enqueue(ctx, tx, outbox.Event{
			Key: key, AggregateType: sampleAggregate, AggregateID: "sample", Type: "InvoicePaid",
			Payload: []byte(`{"cents": 4200}`),
		})
		return err
	})
}

// awaitCopy looks until the event is in Kafka, or the relay has ended.
func awaitCopy(ctx context.Context, relay *process.Process, search kafka.Search) (kafka.Copy, error) {
	again := time.NewTicker(sampleInterval)
	defer again.Stop()
	for {
		found, err := kafka.FindCopies(ctx, search)
		if err == nil && len(found.Copies) > 0 { // an error passes: brokers learn of a new topic one by one
			return found.Copies[0], nil
		}
		select {
		case <-ctx.Done():
			return kafka.Copy{}, errors.Join(ctx.Err(), err)
		case <-relay.Done():
			return kafka.Copy{}, fmt.Errorf("the relay has ended: %w", cmp.Or(relay.Err(), errEarly))
		case <-again.C:
		}
	}
}
