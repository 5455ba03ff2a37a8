package main

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/bench/internal/report"
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
	for want, args := range map[string][]string{
		`"x" is no flag`:        {"x"},
		`"slow" is none`:        {"-workloads", "slow"},
		`"kafka" is none`:       {"-sides", "kafka"},
		`-busy is "perhaps"`:    {"-busy", "perhaps"},
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
	require.Empty(t, turned(nil, 3))
}
