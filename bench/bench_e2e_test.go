//go:build e2e

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/bench/internal/report"
	"github.com/onceward/onceward/internal/process"
)

// TestBench: a run of a few events ends with a line that has every figure that was measured, and
// a dash for each other; the results hold the rest. It is about the benchmark, and says nothing
// of speed.
func TestBench(t *testing.T) {
	dir := t.TempDir()
	_, err := process.Run(t.Context(), process.Spec{Path: "go", Args: []string{"build", "-o", dir, ".", "../cmd/relay"}})
	require.NoError(t, err)
	sides, workloads := "ceiling,idempotent,exactly-once", "single,bulk,trickle,steady"
	if os.Getenv("E2E_FULL") == "1" { // every side but Debezium, whose jars are a download
		sides, workloads = "ceiling,reader,idempotent,again,exactly-once,polling,insert,enqueue,enqueue-many,sql,tx,sql-batch,batch", strings.Join(append(allWorkloads, report.Growth), ",")
	}
	out, err := process.Run(t.Context(), process.Spec{Path: filepath.Join(dir, "bench"), Args: []string{
		"-quick", "-busy", "no", "-events", "1200", "-rounds", "1", "-seconds", "0.5", "-points", "5,50", "-sides", sides, "-workloads", workloads,
		"-relay", filepath.Join(dir, "relay"), "-out", filepath.Join(dir, "results"),
	}})
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	const figure = `[0-9.]+`
	require.Regexp(t, `^bench: relay/ceiling=`+figure+` bulk/ceiling=`+figure+` relay/debezium=- eo/idempotent=`+figure+
		` p50_ms=`+figure+` p99_ms=`+figure+` p99_2000_ms=`+figure+` cpu_us=`+figure+` rss_mib=`+figure+`$`, lines[len(lines)-1])

	text, err := os.ReadFile(filepath.Join(dir, "results", "results.json"))
	require.NoError(t, err)
	var r report.Results
	require.NoError(t, json.Unmarshal(text, &r))
	require.Equal(t, lines[len(lines)-1], r.Line())
	require.True(t, slices.ContainsFunc(r.Setup, func(f report.Fact) bool { return f.Name == "build" && strings.Contains(f.Value, "needs schema") }), r.Setup)
	for _, run := range r.Runs {
		require.Positive(t, run.Events, "%s %s", run.Workload, run.Side)
		if report.Grows(run.Workload) {
			require.Contains(t, []int{5, 50}, run.Point, run.Workload)
		}
		if run.Workload == report.Single && run.Side != report.Ceiling && run.Side != report.Reader {
			require.Equal(t, 1200, run.Events, run.Side)
			require.NotNil(t, run.Batch, run.Side)
			require.GreaterOrEqual(t, *run.Batch, 1.0, run.Side)
		}
	}
	require.FileExists(t, filepath.Join(dir, "results", "single-cpu.svg"))
	if strings.HasSuffix(workloads, report.Growth) {
		for _, curve := range report.Curves {
			require.FileExists(t, filepath.Join(dir, "results", curve+"-cpu.svg"))
		}
	}
}
