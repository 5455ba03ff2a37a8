package main

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/bench/internal/report"
)

// What others cannot do is noted; what of ours fails ends the run, and so does its end.
func TestOnlyOthersAreLeftOut(t *testing.T) {
	b, failed := &bench{results: new(report.Results)}, errors.New("came again")
	require.True(t, b.leaveOut(t.Context(), report.Single, report.DebeziumTuned, failed))
	require.Equal(t, []string{"debezium-tuned was left out of single from here on: came again"}, b.results.Notes)
	for _, ours := range []string{report.Ceiling, report.Idempotent, report.ExactlyOnce} {
		require.False(t, b.leaveOut(t.Context(), report.Single, ours, failed), ours)
	}
	require.False(t, b.leaveOut(t.Context(), report.Single, report.Polling, nil))
	ended, end := context.WithCancel(t.Context())
	end()
	require.False(t, b.leaveOut(ended, report.Single, report.Polling, failed))
	require.Len(t, b.results.Notes, 1)
}
