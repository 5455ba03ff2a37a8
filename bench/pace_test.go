package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What comes before the measured time does not count, and no event is there before its commit.
func TestLatency(t *testing.T) {
	const events, warm = 12, 2
	begin := time.Unix(100, 0)
	times := newTimes(events)
	for i := range events {
		times.committed[i], times.commit[i] = begin.Add(time.Duration(i)*time.Second), time.Duration(i)*time.Millisecond
		times.heard(i, times.committed[i].Add(5*time.Millisecond))
	}
	require.Zero(t, times.missing())
	times.arrived[0] = begin.Add(time.Hour) // of the warm ones
	times.arrived[2] = times.committed[2].Add(-time.Millisecond)
	times.arrived[11] = times.committed[11].Add(40 * time.Millisecond)
	l := times.latency(warm)
	require.InDelta(t, 5, l.P50, 1e-9)
	require.InDelta(t, 40, l.Max, 1e-9)
	require.Greater(t, l.P99, 30.0)
	require.InDelta(t, 6.5, l.CommitP50, 1e-9)
}

func TestAnEventIsHeardOnce(t *testing.T) {
	times, first := newTimes(2), time.Unix(1, 0)
	times.heard(0, first)
	times.heard(0, first.Add(time.Second)) // a copy
	times.heard(7, first)                  // of nobody
	require.Equal(t, first, times.arrived[0])
	require.Equal(t, 1, times.missing())
}

func TestTheLastLineOfATask(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	require.NoError(t, os.WriteFile(log, []byte("noise\n{\"first\":\"2026-01-01T00:00:00Z\",\"last\":\"2026-01-01T00:00:02Z\"}\n"), 0o600))
	var s span
	require.NoError(t, lastLine(log, &s))
	require.Equal(t, 2*time.Second, s.Last.Sub(s.First))
	require.NoError(t, os.WriteFile(log, []byte("bench: it failed\n"), 0o600))
	require.ErrorContains(t, lastLine(log, &s), "bench: it failed")
}
