package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/onceward/onceward/bench/internal/connect"
	"github.com/onceward/onceward/bench/internal/procfs"
	"github.com/onceward/onceward/bench/internal/report"
	"github.com/onceward/onceward/bench/internal/sink"
	"github.com/onceward/onceward/internal/process"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	var err error
	if task := os.Getenv(taskVariable); task != "" {
		err = runTask(ctx, task)
	} else {
		err = run(ctx, os.Args[1:])
	}
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run measures everything, writes the results after each workload and prints the last line.
func run(ctx context.Context, args []string) error {
	p, err := parse(args)
	if err != nil {
		return err
	}
	results := &report.Results{Began: time.Now(), Judged: p.judged,
		Machine: report.Machine{System: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU()}}
	if err := look(ctx, p, results); err != nil {
		return err
	}
	if err := os.MkdirAll(p.out, 0o755); err != nil { //nolint:gosec // G301: results are for everybody
		return fmt.Errorf("make the folder of the results: %w", err)
	}
	b := &bench{plan: p, results: results}
	if err := b.ended(b.measure(ctx)); err != nil {
		return err
	}
	say("the results are in %s", filepath.Join(p.out, "results.md"))
	fmt.Println(results.Line())
	return nil
}

// ended leaves what a run that failed has measured, and says so in it.
func (b *bench) ended(err error) error {
	if err == nil || len(b.results.Runs) == 0 {
		return err
	}
	b.results.Judged = false
	b.note("The run ended before its time, and no bar is judged by it: %v", err)
	return errors.Join(err, b.write())
}

// write leaves the results that there are.
func (b *bench) write() error {
	b.results.Took = time.Since(b.results.Began)
	return b.results.Write(b.plan.out)
}

// bench is a run under way.
type bench struct {
	plan    plan
	results *report.Results
	servers *servers
	// connect are the jars of Debezium; empty: it is left out.
	connect string
}

// measure starts the servers, runs the workloads of the plan and stops everything.
func (b *bench) measure(ctx context.Context) (err error) {
	if b.plan.hasDebezium() {
		b.fetchDebezium(ctx)
	}
	say("starting PostgreSQL and Kafka")
	b.servers, err = startServers(ctx, b.plan.quick)
	if err != nil {
		return err
	}
	defer func() {
		if failed := b.servers.stop(ctx); failed != nil {
			say("the servers did not end as they ought to: %v", failed) // what was measured is measured
		}
	}()
	if err := b.setup(ctx); err != nil {
		return err
	}
	for i, workload := range b.plan.workloads {
		began := time.Now()
		if err := b.workload(ctx, workload); err != nil {
			return fmt.Errorf("%s: %w", workload, err)
		}
		b.results.Ahead = b.plan.workloads[i+1:]
		if err := b.write(); err != nil {
			return err
		}
		say("%s took %s", workload, time.Since(began).Round(time.Second/10))
	}
	return nil
}

// fetchDebezium gets the jars of Debezium. Without them it is left out, and that is said.
func (b *bench) fetchDebezium(ctx context.Context) {
	say("fetching Debezium, where it is not in the cache")
	jars, err := connect.Fetch(ctx)
	if err != nil {
		b.note("Debezium was not measured: %v", err)
		return
	}
	b.connect = jars
}

func (b *bench) workload(ctx context.Context, workload string) error {
	switch workload {
	case report.Enqueue:
		return produce(ctx, b)
	case report.Consume:
		return consume(ctx, b, workload, 0)
	case report.Trickle, report.Steady:
		return b.pace(ctx, workload)
	}
	if report.Grows(workload) {
		return grow(ctx, b, workload)
	}
	return b.drain(ctx, b.plan.load(workload))
}

// setup writes down what is measured.
func (b *bench) setup(ctx context.Context) error {
	p := b.plan
	build, err := version(ctx, p.relay)
	if err != nil {
		return err
	}
	kind := "full"
	if p.quick {
		kind = "quick"
	}
	b.results.Setup = append(b.results.Setup,
		report.Fact{Name: "machine", Value: procfs.System()},
		report.Fact{Name: "run", Value: fmt.Sprintf("%s, %d rounds, sides in turning order", kind, p.rounds)},
		report.Fact{Name: "build", Value: build},
		report.Fact{Name: "PostgreSQL", Value: fmt.Sprintf("%d, fsync on", b.servers.postgres.Version())},
		report.Fact{Name: "Kafka", Value: b.servers.kafkaVersion + ", one broker, 12 partitions, acks=all, " + strings.Join(b.servers.jvm(), " ")},
		report.Fact{Name: "events", Value: fmt.Sprintf("about %d B each; backlogs of %d, in bulk %d in transactions of %d, mixed %d, large %d, beside hogs %d, at the points of curves %d",
			sink.PayloadBytes, p.events[report.Single], p.events[report.Bulk], bulkTransaction, p.events[report.Mixed],
			p.events[report.Large], p.events[report.Hogs], p.events[report.Growth])},
	)
	if p.again != p.relay {
		build, err := version(ctx, p.again)
		if err != nil {
			return err
		}
		b.results.Another = p.again
		b.results.Setup = append(b.results.Setup, report.Fact{Name: "again", Value: "another build, " + build})
	}
	if b.connect != "" {
		b.results.Setup = append(b.results.Setup, report.Fact{Name: "Debezium", Value: connect.Debezium + " on Kafka Connect " + connect.Kafka})
	}
	return nil
}

// version is what a build of the relay says of itself.
func version(ctx context.Context, relay string) (string, error) {
	said, err := process.Run(ctx, process.Spec{Path: relay, Args: []string{"--version"}})
	if err != nil {
		return "", fmt.Errorf("ask the relay for its version: %w", err)
	}
	return strings.TrimPrefix(strings.TrimSpace(said), "relay version "), nil
}

// note says what a reader of the results has to know, at once and in them.
func (b *bench) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	say("%s", text)
	b.results.Notes = append(b.results.Notes, text)
}

// add keeps a measurement, and shows it.
func (b *bench) add(run report.Run) {
	b.results.Runs = append(b.results.Runs, run)
	words := []string{fmt.Sprintf("%s %s, round %d: %.0f events/s", run.Workload, run.Side, run.Round+1, run.Rate())}
	for _, process := range []string{"side", "backend", "broker"} {
		if us, ok := run.CPU[process]; ok {
			words = append(words, fmt.Sprintf("%s %.1f µs", process, us))
		}
	}
	if run.Batch != nil {
		words = append(words, fmt.Sprintf("%.0f records/batch", *run.Batch))
	}
	if run.Memory != nil {
		words = append(words, fmt.Sprintf("%.0f MiB", *run.Memory))
	}
	if run.Latency != nil {
		words = append(words, fmt.Sprintf("p50 %.1f ms, p99 %.1f ms", run.Latency.P50, run.Latency.P99))
	}
	say("%s", strings.Join(words, ", "))
}

// say prints what goes on; the last line of a run is for programs.
func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }
