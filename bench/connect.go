package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"syscall"

	"github.com/onceward/onceward/bench/internal/connect"
	"github.com/onceward/onceward/bench/internal/report"
	"github.com/onceward/onceward/bench/internal/sink"
	"github.com/onceward/onceward/internal/process"
)

// debezium is Debezium's Outbox Event Router on Kafka Connect, reading the same table.
type debezium struct {
	stage   *stage
	name    string
	jars    string
	topic   *sink.Topic
	process *process.Process
}

func (d *debezium) slot() string      { return d.stage.name + "_" + strings.ReplaceAll(d.name, "-", "_") }
func (d *debezium) sink() *sink.Topic { return d.topic }
func (d *debezium) warms()            {} // its JVM compiles meanwhile
func (d *debezium) logFile() string   { return d.stage.path(d.name + ".log") }
func (d *debezium) file(kind string) string {
	return d.stage.path(d.name + "." + kind + ".properties")
}

func (d *debezium) backend(ctx context.Context) (int, error) { return d.stage.walsender(ctx, d.slot()) }

func (d *debezium) prepare(ctx context.Context) (err error) {
	if d.topic, err = d.stage.topic(ctx, d.name); err != nil {
		return err
	}
	dsn, err := url.Parse(d.stage.dsn())
	if err != nil {
		return errors.New("read the DSN of the stage")
	}
	password, _ := dsn.User.Password()
	s := connect.Source{
		Brokers: strings.Join(d.stage.servers.kafka.Addrs(), ","), Host: dsn.Hostname(), Port: dsn.Port(),
		User: dsn.User.Username(), Password: password, Database: d.stage.name, Slot: d.slot(), Publication: publication,
		Topic: d.topic.Name, Offsets: d.stage.path(d.name + ".offsets"), Tuned: d.name == report.DebeziumTuned,
	}
	for kind, text := range map[string]string{"worker": s.Worker(), "connector": s.Connector()} {
		if err := os.WriteFile(d.file(kind), []byte(text), 0o600); err != nil {
			return fmt.Errorf("configure Debezium: %w", err)
		}
	}
	return d.stage.createSlot(ctx, d.slot())
}

func (d *debezium) start(context.Context) (_ *process.Process, err error) {
	d.process, err = connect.Start(d.jars, d.file("worker"), d.file("connector"), d.logFile())
	return d.process, err
}

// ready: it reads its slot.
func (d *debezium) ready(ctx context.Context) (bool, error) {
	if err := d.alive(); err != nil {
		return false, err
	}
	pid, err := d.backend(ctx)
	return pid != 0, err
}

// alive: Kafka Connect outlives a task that has failed, and says so in its log only.
func (d *debezium) alive() error {
	select {
	case <-d.process.Done():
		return fmt.Errorf("Debezium ended: %w%s", d.process.Err(), process.Tail(d.logFile())) //nolint:staticcheck // its name begins so
	default:
	}
	log, err := os.ReadFile(d.logFile())
	if err != nil {
		return fmt.Errorf("read the log of Debezium: %w", err)
	}
	if bytes.Contains(log, []byte("Task is being killed")) {
		return fmt.Errorf("Debezium's task failed%s", process.Tail(d.logFile())) //nolint:staticcheck // its name begins so
	}
	return nil
}

func (d *debezium) finished(ctx context.Context, below int) (bool, error) {
	if err := d.alive(); err != nil {
		return false, err
	}
	return written(ctx, d.topic, below)
}

func (d *debezium) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	return d.process.Stop(ctx, syscall.SIGTERM)
}
