package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/process"
)

// relayProcess is the real relay, as a process of its own, so that it can be
// killed.
type relayProcess struct {
	binary, config, logFile string
	starts                  int

	mu      sync.Mutex
	process *process.Process // nil between kill and start
}

// buildRelay compiles cmd/relay and writes its configuration.
func buildRelay(ctx context.Context, s *stage) (*relayProcess, error) {
	r := &relayProcess{binary: s.path("relay"), config: s.path("relay.yaml"), logFile: s.path("relay.log")}
	build := exec.CommandContext(ctx, "go", "build", "-o", r.binary, "./cmd/relay") //nolint:gosec // G204: a path of our own
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the relay (run the demo from the project's folder): %w\n%s", err, out)
	}
	config := fmt.Sprintf(`name: %s
postgres: {insecure: true, slot: {failover: false}}
kafka:
  brokers: ["%s"]
  insecure: true
routes: [{topic: "{namespace}.{aggregate_type}"}]
topics: {allow: ["shop.*"]}
admin: {listen: "off"}
log: {format: text}
`, relayName, strings.Join(s.kafka.ListenAddrs(), `", "`))
	if err := os.WriteFile(r.config, []byte(config), 0o600); err != nil {
		return nil, err
	}
	if err := r.start(s.postgres.DSN("postgres")); err != nil {
		return r, err
	}
	return r, r.streaming(ctx, s.db)
}

// streaming waits until the relay has made its slot: a first start over a table
// that holds rows already would ask what to do about them.
func (r *relayProcess) streaming(ctx context.Context, db *pgxpool.Pool) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for owned := false; !owned; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := r.died(); err != nil {
			return err
		}
		if err := db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM onceward.relay_state)`).Scan(&owned); err != nil {
			return fmt.Errorf("look for the relay: %w", err)
		}
	}
	return nil
}

// start starts the relay; the DSN goes through the environment, where no
// process list shows it.
func (r *relayProcess) start(dsn string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	r.process, err = process.Start(process.Spec{
		Path: r.binary, Args: []string{"run", "--config", r.config}, Env: []string{"ONCEWARD_POSTGRES_DSN=" + dsn},
		LogFile: r.logFile, DeathSignal: syscall.SIGKILL,
	})
	if err != nil {
		return fmt.Errorf("start the relay: %w", err)
	}
	r.starts++
	return nil
}

// kill ends the relay as a crash would: SIGKILL, nothing flushed.
func (r *relayProcess) kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.process.Kill()
	r.process = nil
}

// died reports that the relay ended by itself, with the end of its log.
func (r *relayProcess) died() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.process == nil {
		return nil
	}
	select {
	case <-r.process.Done():
		return fmt.Errorf("the relay ended by itself: %w%s", r.process.Err(), process.Tail(r.logFile))
	default:
		return nil
	}
}

// stop ends the relay gracefully.
func (r *relayProcess) stop(ctx context.Context) error {
	if r.process == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if err := r.process.Stop(ctx, os.Interrupt); err != nil {
		return fmt.Errorf("stop the relay: %w", err)
	}
	return nil
}
