package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/bench/internal/report"
)

// What others cannot do is noted; what of ours fails ends the run, and so does its end.
func TestOnlyOthersAreLeftOut(t *testing.T) {
	b, failed := &bench{results: new(report.Results)}, errors.New("came again")
	require.True(t, b.leaveOut(t.Context(), report.Single, report.DebeziumTuned, failed))
	require.Equal(t, []string{"debezium-tuned was left out of single: came again"}, b.results.Notes)
	for _, ours := range []string{report.Ceiling, report.Idempotent, report.ExactlyOnce} {
		require.False(t, b.leaveOut(t.Context(), report.Single, ours, failed), ours)
	}
	require.False(t, b.leaveOut(t.Context(), report.Single, report.Polling, nil))
	ended, end := context.WithCancel(t.Context())
	end()
	require.False(t, b.leaveOut(ended, report.Single, report.Polling, failed))
	require.Len(t, b.results.Notes, 1)
}

// What a run has measured before it failed is there, and no bar is judged by it; one that
// measured nothing leaves the results of the run before.
func TestARunThatFails(t *testing.T) {
	failed := errors.New("the disk is full")
	b := &bench{plan: plan{out: t.TempDir()}, results: &report.Results{Judged: true}}
	page := filepath.Join(b.plan.out, "results.md")
	require.ErrorIs(t, b.ended(failed), failed)
	require.NoFileExists(t, page)
	b.add(report.Run{Workload: report.Single, Side: report.Ceiling, Events: 1, Seconds: 1})
	require.NoError(t, b.ended(nil))
	require.NoFileExists(t, page, "whoever measures writes after each workload")
	require.ErrorIs(t, b.ended(failed), failed)
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(text), "ended before its time, and no bar is judged by it: the disk is full")
	require.NotContains(t, string(text), "## Bars")
}
