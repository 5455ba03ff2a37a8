package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/onceward/onceward/bench/internal/procfs"
	"github.com/onceward/onceward/bench/internal/report"
)

// call is a side of what a service calls: it does some work and says how many events that were.
// It is called again and again, by several goroutines at once.
type call func(ctx context.Context) (events int, err error)

// calling measures the calls of a workload, side by side, by some workers each. The CPU is that
// of this process, which is the service.
func calling(ctx context.Context, b *bench, workload string, workers int, sides map[string]call) error {
	names := b.plan.sides(workload)
	for _, name := range names { // connections, prepared statements, caches
		if _, err := sides[name](ctx); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for round := range b.plan.rounds {
		for _, name := range turned(names, round) {
			run, err := callFor(ctx, b.plan.calls, workers, sides[name])
			if err != nil {
				return fmt.Errorf("%s, round %d: %w", name, round+1, err)
			}
			run.Workload, run.Side, run.Round = workload, name, round
			b.add(run)
		}
	}
	return nil
}

// callFor calls for some time. The rate is that of all calls that have ended.
func callFor(ctx context.Context, length time.Duration, workers int, c call) (report.Run, error) {
	type result struct {
		events int
		err    error
	}
	before, known := procfs.CPU(os.Getpid())
	began := time.Now()
	results := make(chan result)
	for range workers {
		go func() {
			var r result
			for r.err == nil && time.Since(began) < length {
				var n int
				n, r.err = c(ctx)
				r.events += n
			}
			results <- r
		}()
	}
	run := report.Run{}
	var errs []error
	for range workers {
		r := <-results
		run.Events += r.events
		errs = append(errs, r.err)
	}
	run.Seconds = time.Since(began).Seconds()
	if after, err := procfs.CPU(os.Getpid()); err == nil && known == nil {
		run.CPU = map[string]float64{"side": (after - before).Seconds() * 1e6 / float64(max(run.Events, 1))}
	}
	return run, errors.Join(errs...)
}
