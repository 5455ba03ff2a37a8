//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	readings "github.com/onceward/onceward/consumer/fingerprint"
	"github.com/onceward/onceward/consumer/saramagroup"
	"github.com/onceward/onceward/internal/process"
)

// consumerTask is the variable that makes the test binary a consumer: a process
// of its own, which can be killed.
const consumerTask = "ONCEWARD_E2E_CONSUMER"

// task is what a consumer process has to do.
type task struct {
	DSN      string
	Provider string // the DSN of the database that plays the provider
	Brokers  []string
	Topic    string
	Group    string // of the claims
	Kafka    string // group in Kafka; another one reads the whole topic again
	Seed     uint64
	Fail     int               // percent of the attempts that fail, or kill their connection
	Crash    string            // the point at which the process kills itself, once
	Window   time.Duration     // of the one class; 0 is the default
	Version  int               // of the program in TestConsumerMoves: 1 or 2; 0 elsewhere
	Defect   string            // that is built in, see brokenConsumer
	Refusing string            // event type whose late events become letters
	Redis    string            // address of the Redis in front of the claim; empty: none
	Mode     pgx.QueryExecMode // 0 is the default
	Bare     bool              // pgx keeps no descriptions of statements
}

// body is the payload of the events. Dead ones can never be applied; those with
// another trouble can, at last.
type body struct {
	N       int    `json:"n"`
	Dead    bool   `json:"dead,omitempty"`
	Trouble string `json:"trouble,omitempty"` // of the first attempts, see trouble
	Charged bool   `json:"charged,omitempty"` // the provider was called when the answer was lost
	Refused bool   `json:"refused,omitempty"` // by a deferred constraint, unless it was mended
}

// runConsumer is the main function of a consumer process.
func runConsumer(text string) int {
	var c consumerProgram
	if err := json.Unmarshal([]byte(text), &c.task); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := c.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// consumerProgram applies events of four types in the four ways there are.
type consumerProgram struct {
	task
	pool      *pgxpool.Pool
	provider  *pgxpool.Pool
	processor *consumer.Processor
	draws     atomic.Uint64
}

func (c *consumerProgram) run(ctx context.Context) error {
	dsn, err := pgxpool.ParseConfig(c.DSN)
	if err != nil {
		return err
	}
	dsn.MaxConns = 12
	if c.Mode != 0 {
		dsn.ConnConfig.DefaultQueryExecMode = c.Mode
	}
	if c.Bare {
		dsn.ConnConfig.DescriptionCacheCapacity = 0
	}
	if c.pool, err = pgxpool.NewWithConfig(ctx, dsn); err != nil {
		return err
	}
	defer c.pool.Close()
	if c.provider, err = pgxpool.New(ctx, c.Provider); err != nil {
		return err
	}
	defer c.provider.Close()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	conf := c.config()
	if c.Redis != "" {
		end, err := c.remember(log, &conf)
		if err != nil {
			return err
		}
		defer end()
	}
	for c.processor == nil {
		c.processor, err = consumer.New(ctx, conf)
		if err != nil && wait(ctx, 50*time.Millisecond) != nil {
			return nil
		}
	}
	r := consumer.NewRouter(c.processor)
	c.register(r)
	return saramagroup.Run(ctx, c.Brokers, c.handler(r), saramagroup.Config{
		Topics: []string{c.Topic}, Insecure: true, Logger: log, Concurrency: 4, SessionTimeout: 2 * time.Second,
		RetryMin: 5 * time.Millisecond, RetryMax: 200 * time.Millisecond, CommitInterval: 100 * time.Millisecond, HousekeepingInterval: 200 * time.Millisecond,
	})
}

func (c *consumerProgram) config() consumer.Config {
	conf := consumer.Config{
		Group: c.Group, DB: c.pool, LockTimeout: 2 * time.Second, SessionTimeout: 3 * time.Second, Retry: consumer.Retry{MaxAttempts: -1},
		Classes: c.classes(),
	}
	if c.Version > 0 {
		conf.HandlerTimeout, conf.Retry.MaxAttempts = 2*time.Second, 15
		conf.Readers = []consumer.RecordReader{c.reading}
	}
	if c.Defect == givesUp {
		conf.Retry.MaxAttempts = 1
	}
	return conf
}

// register gives each type its handler. The second version of the program in
// TestConsumerMoves handles some of them in another way, and one type more.
func (c *consumerProgram) register(r *consumer.Router) {
	batch, set := consumer.BatchOptions{Max: 50}, consumer.BatchOptions{Max: 30}
	all := func(ctx context.Context, tx pgx.Tx, evs []consumer.Event) error {
		for _, ev := range evs {
			if err := c.apply(ctx, tx, ev); err != nil {
				return err
			}
		}
		return nil
	}
	r.Tx("Tx", c.apply)
	r.Func("Call", c.call)
	if c.Version > 0 {
		r.Func("Two", c.two)
		c.registerUnclaimed(r)
	}
	if c.Version < 2 {
		r.Batch("Batch", batch, c.apply)
		r.BatchSet("Set", set, all)
		return
	}
	r.BatchSet("Batch", batch, all)
	r.Batch("Set", set, c.apply)
	r.Tx("New", c.apply)
}

func (c *consumerProgram) classes() (classes []consumer.Class) {
	if c.Window == 0 {
		return nil
	}
	if c.Version > 0 {
		classes = append(classes, readings.Window(readType, readWindow))
	}
	if c.Version == 2 {
		classes = append(classes, consumer.Class{Pattern: "Tx", Window: 2 * c.Window})
	}
	if c.Refusing != "" {
		classes = append(classes, consumer.Class{Pattern: c.Refusing, Window: c.Window, Late: consumer.LateDeadLetter})
	}
	return append(classes, consumer.Class{Pattern: "*", Window: c.Window})
}

// handler is the router as the group sees it.
func (c *consumerProgram) handler(r *consumer.Router) saramagroup.Handler {
	t := &tapped{Router: r, program: c}
	if broken := brokenConsumers[c.Defect]; broken != nil {
		return broken(t)
	}
	return t
}

// crash kills the process at the named point, as kill -9 does.
func (c *consumerProgram) crash(point string) {
	if c.Crash == point {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// chance draws reproducibly per process.
func (c *consumerProgram) chance(percent int) bool {
	n := c.draws.Add(1)
	return rand.New(rand.NewPCG(c.Seed, n)).IntN(100) < percent
}

var errUnlucky = errors.New("fails on purpose")

// apply writes the effect; after it an attempt may fail in one of several ways.
func (c *consumerProgram) apply(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
	c.crash("after claim")
	if c.Defect == outsideEffect {
		if _, err := c.pool.Exec(ctx, `INSERT INTO effects (key, pid, late) VALUES ($1, $2, $3)`, ev.Key.String(), os.Getpid(), ev.Late); err != nil {
			return err
		}
	} else if _, err := tx.Exec(ctx, `INSERT INTO effects (key, pid, late) VALUES ($1, $2, $3)`, ev.Key.String(), os.Getpid(), ev.Late); err != nil {
		return err
	}
	if err := c.possible(ctx, tx, ev); err != nil {
		if c.Defect == swallows {
			_, err = tx.Exec(ctx, `DELETE FROM effects WHERE key = $1`, ev.Key.String())
		}
		return err
	}
	if err := c.trouble(ctx, tx, ev); err != nil {
		return err
	}
	c.crash("after handler")
	if c.Crash == "commit unknown" {
		// The commit waits in a deferred trigger while the process dies.
		if _, err := tx.Exec(ctx, `INSERT INTO slow VALUES ($1)`, ev.Key.String()); err != nil {
			return err
		}
		time.AfterFunc(300*time.Millisecond, func() { c.crash("commit unknown") })
	}
	switch {
	case !c.chance(c.Fail):
		return nil
	case c.chance(30):
		_, err := tx.Exec(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
		return err
	case c.chance(20):
		panic(errUnlucky)
	}
	return errUnlucky
}

// possible returns why an event can never be applied, unless somebody has mended
// that.
func (c *consumerProgram) possible(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, ev consumer.Event,
) error {
	var b body
	if err := json.Unmarshal(ev.Payload, &b); err != nil {
		return consumer.DeadLetter(err)
	}
	if !b.Dead {
		return nil
	}
	var mended bool
	if err := db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM mended WHERE key = $1)`, ev.Key.String()).Scan(&mended); err != nil || mended {
		return err
	}
	return consumer.DeadLetter(errUnlucky)
}

// call charges through a provider that remembers keys, behind a fence.
func (c *consumerProgram) call(ctx context.Context, ev consumer.Event) error {
	forgets, err := c.forgetful(ev)
	if err != nil {
		return err
	}
	_, err = consumer.Fence(ctx, c.processor, ev, consumer.Effect[string]{
		Name: "charge", Lease: 2 * time.Second, ProviderKeyTTL: forgets,
		Do: func(ctx context.Context, call consumer.Call) (string, error) {
			c.crash("after PENDING")
			if forgets > 0 {
				if err := c.lose(ctx, ev, call); err != nil {
					return "", err
				}
			}
			if err := c.possible(ctx, c.pool, ev); err != nil {
				return "", err
			}
			if c.chance(c.Fail) {
				return "", errUnlucky
			}
			_, err := c.provider.Exec(ctx, `INSERT INTO provider AS p (key) VALUES ($1) ON CONFLICT (key) DO UPDATE SET calls = p.calls + 1`, c.keyOf(call))
			c.crash("after provider")
			if err == nil && c.chance(c.Fail) {
				return "", errUnlucky // the answer is lost
			}
			return call.Key, err
		},
		Commit: func(ctx context.Context, tx pgx.Tx, _ string) error {
			_, err := tx.Exec(ctx, `INSERT INTO effects (key, pid, late) VALUES ($1, $2, $3)`, ev.Key.String(), os.Getpid(), ev.Late)
			c.crash("before COMPLETE")
			return err
		},
	})
	return err
}

// tapped is the router as the group sees it, with points to crash at, and in a
// Kafka group of its own.
type tapped struct {
	*consumer.Router
	program *consumerProgram
}

func (t *tapped) Group() string { return t.program.Kafka }

func (t *tapped) HandleRecord(ctx context.Context, rec consumer.Record) (consumer.Outcome, error) {
	t.program.crash("before claim")
	outcome, err := t.Router.HandleRecord(ctx, rec)
	t.program.crash("after commit")
	return outcome, err
}

func (t *tapped) HandleRecords(ctx context.Context, recs []consumer.Record) []consumer.Delivery {
	t.program.crash("before claim")
	deliveries := t.Router.HandleRecords(ctx, recs)
	t.program.crash("after commit")
	return deliveries
}

func (t *tapped) SaveProgress(ctx context.Context, history string, marks []consumer.Mark) error {
	t.program.crash("before mark")
	err := t.Router.SaveProgress(ctx, history, marks)
	t.program.crash("before offset flush")
	return err
}

// consumerProcess is a consumer that can be killed.
type consumerProcess struct {
	t       *testing.T
	task    task
	log     string
	process *process.Process
}

func newConsumerProcess(t *testing.T, of task) *consumerProcess {
	t.Helper()
	c := &consumerProcess{t: t, task: of, log: filepath.Join(t.TempDir(), "consumer.log")}
	t.Cleanup(func() {
		if c.process != nil {
			c.process.Kill()
		}
		if t.Failed() {
			t.Log(process.Tail(c.log))
		}
	})
	return c
}

func (c *consumerProcess) start() {
	c.t.Helper()
	binary, err := os.Executable()
	require.NoError(c.t, err)
	text, err := json.Marshal(c.task)
	require.NoError(c.t, err)
	c.process, err = process.Start(process.Spec{Path: binary, Env: []string{consumerTask + "=" + string(text)}, LogFile: c.log, DeathSignal: syscall.SIGKILL})
	require.NoError(c.t, err)
}

func (c *consumerProcess) kill() {
	c.process.Kill()
	c.process = nil
}

func (c *consumerProcess) stop() {
	c.t.Helper()
	// Before its first word it does not listen to the signal yet.
	eventually(c.t, "the consumer runs", 30*time.Second, func() bool { return c.says("level=") })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(c.t, c.process.Stop(ctx, syscall.SIGTERM))
	require.NoError(c.t, c.process.Err())
	c.process = nil
}

// says reports whether the log has the text.
func (c *consumerProcess) says(text string) bool {
	c.t.Helper()
	log, err := os.ReadFile(c.log)
	require.NoError(c.t, err)
	return strings.Contains(string(log), text)
}
