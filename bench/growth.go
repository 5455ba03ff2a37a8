package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/bench/internal/report"
	"github.com/onceward/onceward/bench/internal/sink"
)

// fullPoints are the points of the curves.
func fullPoints() map[string][]int {
	return map[string][]int{
		report.GrowthBacklog:     {1e4, 1e5, 1e6, 1e7},
		report.GrowthClaims:      {1e6, 5e6, 2e7},
		report.GrowthPartitions:  {8, 30, 100, 300},
		report.GrowthTopics:      {1, 10, 100, 1000},
		report.GrowthAggregates:  {10, 1000, 1e5, 1e6},
		report.GrowthTransaction: {1, 100, 1e4, 1e5, 2e6},
		report.GrowthDistance:    {1, 5, 20, 50},
	}
}

// quickPoints are those of a quick run, which go less far.
func quickPoints() map[string][]int {
	return map[string][]int{
		report.GrowthBacklog:     {1e4, 3e4, 1e5},
		report.GrowthClaims:      {1e4, 1e5, 1e6},
		report.GrowthPartitions:  {8, 50, 300},
		report.GrowthTopics:      {1, 10, 100},
		report.GrowthAggregates:  {10, 1000, 1e5},
		report.GrowthTransaction: {1, 1000, 1e5},
		report.GrowthDistance:    {1, 10, 50},
	}
}

// mostBacklogs is how often a short backlog is drained at its point: the clock of CPU times has
// steps of 10 ms, and a few thousand events take not many of them.
const mostBacklogs = 10

// grow measures a curve. Each point has a stage of its own, which is gone before the next, and
// points take turns as sides do.
func grow(ctx context.Context, b *bench, workload string) (err error) {
	if workload == report.GrowthDistance {
		far, failed := b.servers.far(ctx)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, far.hangUp(ctx)) }()
		b = &bench{plan: b.plan, results: b.results, servers: far}
	}
	for round := range b.plan.paces {
		for _, point := range turned(b.plan.points[workload], round) {
			say("%s: %d", workload, point)
			done := len(b.results.Runs)
			if err := growTo(ctx, b, workload, point); err != nil {
				return fmt.Errorf("at %d: %w", point, err)
			}
			for i := range b.results.Runs[done:] {
				b.results.Runs[done+i].Point = point
			}
		}
	}
	return nil
}

// growTo measures a point.
func growTo(ctx context.Context, b *bench, workload string, point int) error {
	switch workload {
	case report.GrowthClaims:
		return consume(ctx, b, workload, point)
	case report.GrowthDistance:
		b.servers.stretch(time.Duration(point) * time.Millisecond)
	}
	return b.drain(ctx, b.plan.grown(workload, point))
}

// grown is the load of a point.
func (p *plan) grown(workload string, point int) load {
	l := load{workload, p.events[report.Growth], bulkTransaction, 1, sink.Usual}
	switch workload {
	case report.GrowthBacklog:
		l.rounds = min(mostBacklogs, max(1, l.events/point))
		l.events = point
	case report.GrowthPartitions:
		l.shape.Partitions = point
	case report.GrowthTopics:
		l.shape.Topics, l.shape.Partitions = point, 1
	case report.GrowthAggregates:
		l.shape.Keys = point
	case report.GrowthTransaction:
		l.each, l.events = point, max(l.events, point)
	}
	return l
}
