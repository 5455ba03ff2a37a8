//go:build e2e

package e2e

import (
	"bufio"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMetricsReconcile: at any moment a process has ended no more events than it
// has read, and when it is quiet, read = published + parked + skipped. Both are
// what the checker counts in the table and in Kafka. No process of this test gets
// to its first checkpoint, so each reads everything again.
func TestMetricsReconcile(t *testing.T) {
	t.Parallel()
	onAVersion(t, func(t *testing.T, version string) {
		w := newEnvironment(t, version)
		w.install()
		w.createTopic(nil)
		const neverCheckpoint = "checkpoint_interval: 1h"
		r := startRelay(t, w, neverCheckpoint)
		load := &writers{pool: w.app, seed: 7, count: 4, aggregates: 40, target: 4000, namespace: w.name}
		written := make(chan error, 1)
		go func() { written <- load.run(t.Context()) }()
		looks := 0
		for mark := int64(100); mark <= 3000; mark += 100 {
			waitFor(t, load, written, mark)
			if mark == 1500 { // in flight or not
				r.kill()
				startAgain(t, r)
			}
			earlier, later := scrape(t, r), scrape(t, r)
			require.LessOrEqual(t, earlier.ended(), later.read(), "no more has ended than was read")
			looks++
		}
		require.NoError(t, <-written)
		committed := quiet(t, w, r)
		for range 2 { // with nothing in flight, Kafka's count is exact too
			r.kill()
			before := w.ends()
			startAgain(t, r)
			require.Equal(t, committed, quiet(t, w, r))
			require.Equal(t, scrape(t, r).published(), w.ends()-before, "records of this process")
		}
		r.stop()
		_, copies, _ := verifyAll(t, w, load.ghosts)
		t.Logf("PostgreSQL %s: %d looks under load, 4 processes, %d events each, %d copies by the three kills", version, looks, committed, copies)
	})
}

// startAgain starts the relay and waits until the new process streams and serves
// its metrics.
func startAgain(t *testing.T, r *relayProcess) {
	t.Helper()
	const serving = "serving health and metrics"
	streamed, served := sessions(r), strings.Count(r.log(), serving)
	r.start()
	eventually(t, "the relay streams again", 30*time.Second, func() bool {
		return sessions(r) > streamed && strings.Count(r.log(), serving) > served
	})
}

// quiet waits until the process has ended what is committed, compares, and returns
// the number of committed events.
func quiet(t *testing.T, w *environment, r *relayProcess) int {
	t.Helper()
	committed := scalar[int](w, `SELECT count(*) FROM onceward.outbox`)
	var m scraped
	eventually(t, "everything has ended", time.Minute, func() bool {
		m = scrape(t, r)
		return m.read() >= int64(committed) && m.ended() >= m.read()
	})
	require.EqualValues(t, committed, m.read(), "read is what was committed")
	require.Equal(t, m.read(), m.ended(), "read = published + parked + skipped")
	return committed
}

// scraped is one answer of /metrics, summed over labels.
type scraped map[string]float64

func (m scraped) read() int64      { return int64(m["onceward_events_read_total"]) }
func (m scraped) published() int64 { return int64(m["onceward_events_published_total"]) }

// ended is the other side of the account. A name that the relay does not serve
// counts nothing.
func (m scraped) ended() int64 {
	return m.published() + int64(m["onceward_events_parked_total"]) + int64(m["onceward_events_skipped_total"])
}

// scrape reads the metrics of the relay's process.
func scrape(t *testing.T, r *relayProcess) scraped {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+adminAddress(t, r)+"/metrics", nil)
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer answer.Body.Close()
	m := scraped{}
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		series, value, ok := strings.Cut(lines.Text(), " ")
		if !ok || strings.HasPrefix(series, "#") || !strings.HasPrefix(series, "onceward_") {
			continue
		}
		name, _, _ := strings.Cut(series, "{")
		v, err := strconv.ParseFloat(value[strings.LastIndex(value, " ")+1:], 64) // a label may hold a blank
		require.NoError(t, err, lines.Text())
		m[name] += v
	}
	require.Contains(t, m, "onceward_events_read_total")
	return m
}
