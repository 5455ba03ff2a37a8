package main

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/bench/internal/report"
	"github.com/onceward/onceward/bench/internal/sink"
)

func TestFlags(t *testing.T) {
	p, err := parse([]string{"-quick", "-events", "2000", "-rounds", "1", "-seconds", "0.5", "-workloads", "single,trickle", "-sides", "ceiling,idempotent"})
	require.NoError(t, err)
	require.Equal(t, []string{report.Single, report.Trickle}, p.workloads)
	require.Equal(t, []string{report.Ceiling, report.Idempotent}, p.sides(report.Single))
	require.Equal(t, []string{report.Idempotent}, p.sides(report.Trickle))
	require.Equal(t, 2000, p.events[report.Hogs])
	require.Equal(t, 500*time.Millisecond, p.pace)
	require.False(t, p.hasDebezium())
	require.False(t, p.judged)
	require.Equal(t, "bin/relay", p.again)
	p, err = parse([]string{"-again", "old/relay"})
	require.NoError(t, err)
	require.True(t, p.judged)
	for _, changed := range [][]string{{"-quick"}, {"-events", "2000"}, {"-rounds", "9"}, {"-seconds", "5"}, {"-points", "7"}, {"-sides", "idempotent", "-workloads", "steady"}} {
		p, err := parse(changed)
		require.NoError(t, err)
		require.False(t, p.judged, changed)
	}
	b := bench{plan: p}
	for side, binary := range map[string]string{report.Idempotent: "bin/relay", report.ExactlyOnce: "bin/relay", report.Again: "old/relay"} {
		s, err := b.side(nil, side)
		require.NoError(t, err)
		require.Equal(t, binary, s.(*relay).binary, side)
	}
	for want, args := range map[string][]string{
		`"x" is no flag`:        {"x"},
		`"slow" is none`:        {"-workloads", "slow"},
		`"kafka" is none`:       {"-sides", "kafka"},
		`steady has only idemp`: {"-sides", "reader", "-workloads", "single,steady"},
		`-busy is "perhaps"`:    {"-busy", "perhaps"},
		`"many" is no whole`:    {"-points", "1,many"},
		`"0" is no whole`:       {"-points", "0"},
		`flag provided but not`: {"-nothing"},
	} {
		_, err := parse(args)
		require.ErrorContains(t, err, want)
	}
}

// Every figure of the last line is in both plans.
func TestThePlansHaveTheFiguresOfTheLastLine(t *testing.T) {
	for _, args := range [][]string{nil, {"-quick"}} {
		p, err := parse(args)
		require.NoError(t, err)
		require.Equal(t, allWorkloads, p.workloads)
		for _, side := range []string{report.Ceiling, report.Idempotent, report.Again, report.ExactlyOnce, report.Polling, report.DebeziumTuned} {
			require.Contains(t, p.sides(report.Single), side)
		}
		require.Subset(t, p.sides(report.Bulk), []string{report.Ceiling, report.Idempotent, report.ExactlyOnce})
		require.True(t, p.hasDebezium())
	}
}

// All curves are one word, in both plans, with points that go up; one alone is its own name.
func TestTheCurvesOfThePlans(t *testing.T) {
	for _, args := range [][]string{{"-workloads", "single,growth"}, {"-quick", "-workloads", "single,growth"}} {
		p, err := parse(args)
		require.NoError(t, err)
		require.Equal(t, append([]string{report.Single}, report.Curves...), p.workloads)
		for _, curve := range report.Curves {
			require.Contains(t, p.planned(curve), map[bool]string{true: report.BatchOf, false: report.Idempotent}[curve == report.GrowthClaims])
			require.Greater(t, len(p.points[curve]), 2, curve)
			require.True(t, slices.IsSorted(p.points[curve]), curve)
		}
		require.NotContains(t, allWorkloads, report.GrowthTopics)
	}
	p, err := parse([]string{"-workloads", "growth-topics", "-points", "2,30", "-events", "500"})
	require.NoError(t, err)
	require.Equal(t, []string{report.GrowthTopics}, p.workloads)
	require.Equal(t, []int{2, 30}, p.points[report.GrowthTopics])
	require.Equal(t, 500, p.grown(report.GrowthTopics, 2).events)
}

// At a point of a curve one thing differs from the other points of all.
func TestOneThingGrows(t *testing.T) {
	p, err := parse([]string{"-quick"})
	require.NoError(t, err)
	base := p.grown(report.GrowthDistance, 50)
	require.Equal(t, load{report.GrowthDistance, 100_000, bulkTransaction, 1, sink.Usual}, base)
	for curve, change := range map[string]func(*load){
		report.GrowthBacklog:     func(l *load) { l.events, l.rounds = 40_000, 2 },
		report.GrowthPartitions:  func(l *load) { l.shape.Partitions = 40_000 },
		report.GrowthTopics:      func(l *load) { l.shape.Topics, l.shape.Partitions = 40_000, 1 },
		report.GrowthAggregates:  func(l *load) { l.shape.Keys = 40_000 },
		report.GrowthTransaction: func(l *load) { l.each = 40_000 },
	} {
		want := base
		want.workload = curve
		change(&want)
		require.Equal(t, want, p.grown(curve, 40_000), curve)
	}
	require.Equal(t, mostBacklogs, p.grown(report.GrowthBacklog, 10).rounds, "a short one is drained again and again")
	require.Equal(t, 1, p.grown(report.GrowthBacklog, 1_000_000).rounds)
	require.Equal(t, 2_000_000, p.grown(report.GrowthTransaction, 2_000_000).events, "it has to fit")
}

// In every round each has its turn, and no side is always before another.
func TestSidesTakeTurns(t *testing.T) {
	sides := []string{"a", "b", "c", "d"}
	for round := range 8 {
		order := turned(sides, round)
		require.ElementsMatch(t, sides, order)
	}
	require.Equal(t, sides, turned(sides, 0))
	require.Equal(t, []string{"d", "c", "b", "a"}, turned(sides, 1))
	require.Equal(t, []string{"b", "c", "d", "a"}, turned(sides, 2))
	before := 0 // rounds in which a comes before b
	for round := range 4 {
		order := turned(sides, round)
		if slices.Index(order, "a") < slices.Index(order, "b") {
			before++
		}
	}
	require.Equal(t, 2, before)
	require.Empty(t, turned([]string(nil), 3))
}
