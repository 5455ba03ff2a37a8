package consumerprom_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/consumerprom"
	"github.com/onceward/onceward/consumer/retention"
	"github.com/onceward/onceward/consumer/saramagroup"
)

// page returns what Prometheus scrapes; the registry checks that what is
// collected was described.
func page(t *testing.T, c prometheus.Collector) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(c))
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.PanicOnError}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	require.Equal(t, 200, answer.Code)
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return string(text)
}

// series returns the lines that are no comments.
func series(text string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

func snapshot(at time.Time) saramagroup.Snapshot {
	return saramagroup.Snapshot{
		Group: "billing", Generation: 3,
		Partitions: []saramagroup.PartitionStats{
			{Topic: "orders", Partition: 0, Next: 7, HighWater: 12, Held: 4, HeldBytes: 400, InFlight: 2, WaitingSince: at.Add(-90 * time.Second)},
			{Topic: "orders", Partition: 1, Next: 5, HighWater: 5},
		},
		Finished:      map[consumer.Outcome]int64{consumer.Processed: 20, consumer.Duplicate: 2, consumer.DeadLettered: 0},
		Failed:        map[saramagroup.FailureKind]int64{saramagroup.FailureHandler: 4, saramagroup.FailureInfrastructure: 1, saramagroup.FailureInProgress: 0},
		Rewinds:       1,
		ProgressSaved: at.Add(-time.Second),
	}
}

func TestMetricsOfAGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the clock stands at the beginning of the year 2000
		c := consumerprom.New()
		require.Empty(t, page(t, c))
		c.Observe(saramagroup.Snapshot{Group: "billing", Generation: 2})
		c.Observe(snapshot(time.Now()))
		require.ElementsMatch(t, []string{
			`onceward_consumer_generation{group="billing"} 3`,
			`onceward_consumer_messages_finished_total{group="billing",outcome="processed"} 20`,
			`onceward_consumer_messages_finished_total{group="billing",outcome="duplicate"} 2`,
			`onceward_consumer_messages_finished_total{group="billing",outcome="dead-lettered"} 0`,
			`onceward_consumer_deliveries_failed_total{group="billing",kind="handler"} 4`,
			`onceward_consumer_deliveries_failed_total{group="billing",kind="infrastructure"} 1`,
			`onceward_consumer_deliveries_failed_total{group="billing",kind="in-progress"} 0`,
			`onceward_consumer_rewinds_total{group="billing"} 1`,
			`onceward_consumer_progress_saved_timestamp_seconds{group="billing"} 9.46684799e+08`,
			`onceward_consumer_next_offset{group="billing",partition="0",topic="orders"} 7`,
			`onceward_consumer_next_offset{group="billing",partition="1",topic="orders"} 5`,
			`onceward_consumer_high_water_offset{group="billing",partition="0",topic="orders"} 12`,
			`onceward_consumer_high_water_offset{group="billing",partition="1",topic="orders"} 5`,
			`onceward_consumer_lag_messages{group="billing",partition="0",topic="orders"} 5`,
			`onceward_consumer_lag_messages{group="billing",partition="1",topic="orders"} 0`,
			`onceward_consumer_held_messages{group="billing",partition="0",topic="orders"} 4`,
			`onceward_consumer_held_messages{group="billing",partition="1",topic="orders"} 0`,
			`onceward_consumer_held_bytes{group="billing",partition="0",topic="orders"} 400`,
			`onceward_consumer_held_bytes{group="billing",partition="1",topic="orders"} 0`,
			`onceward_consumer_in_flight_messages{group="billing",partition="0",topic="orders"} 2`,
			`onceward_consumer_in_flight_messages{group="billing",partition="1",topic="orders"} 0`,
			`onceward_consumer_oldest_waiting_seconds{group="billing",partition="0",topic="orders"} 90`,
			`onceward_consumer_oldest_waiting_seconds{group="billing",partition="1",topic="orders"} 0`,
		}, series(page(t, c)))

		<-time.After(10 * time.Second)
		c.Observe(saramagroup.Snapshot{Group: "ledger"})
		text := page(t, c)
		require.Contains(t, text, `onceward_consumer_oldest_waiting_seconds{group="billing",partition="0",topic="orders"} 100`)
		require.Contains(t, text, `onceward_consumer_progress_saved_timestamp_seconds{group="ledger"} 0`)

		c.Observe(saramagroup.Snapshot{Group: "billing"}) // has left
		require.NotContains(t, page(t, c), "topic=")
	})
}

func report() retention.Report {
	day := time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)
	return retention.Report{
		Floors: []retention.FloorReport{
			{Group: "billing", Class: "*", After: day, Behind: time.Hour},
			{Group: "billing", Class: "Order*", After: day, Wrong: true},
			{Group: "gone", Class: "*", After: day, Retired: true},
		},
		Leaves:  []retention.LeafReport{{State: retention.LeafOpen}, {State: retention.LeafOpen}, {State: retention.LeafWaiting, Wrong: true}},
		Rows:    []retention.RowsReport{{Table: "attempts"}, {Table: "fences", Lag: time.Minute}},
		Ahead:   14,
		Horizon: day,
		Bytes:   4096,
		Overdue: 2 * time.Hour,
	}
}

func TestMetricsOfCompleted(t *testing.T) {
	c := consumerprom.New()
	require.Empty(t, series(page(t, c)), "there is none")
	c.Completed(func() consumer.CompletedStats {
		return consumer.CompletedStats{Hits: 1, Misses: 2, Stale: 3, Errors: 4, Unasked: 5, Remembered: 6, Forgone: 7}
	})
	require.ElementsMatch(t, []string{
		`onceward_consumer_completed_lookups_total{result="hit"} 1`,
		`onceward_consumer_completed_lookups_total{result="miss"} 2`,
		`onceward_consumer_completed_lookups_total{result="stale"} 3`,
		`onceward_consumer_completed_lookups_total{result="error"} 4`,
		`onceward_consumer_completed_lookups_total{result="unasked"} 5`,
		`onceward_consumer_completed_writes_total{result="kept"} 6`,
		`onceward_consumer_completed_writes_total{result="forgone"} 7`,
	}, series(page(t, c)))
}

func TestMetricsOfRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := consumerprom.New()
		c.Maintained(report())
		require.ElementsMatch(t, []string{
			`onceward_consumer_maintained_timestamp_seconds 9.466848e+08`,
			`onceward_consumer_partitions{state="open"} 2`,
			`onceward_consumer_partitions{state="waiting"} 1`,
			`onceward_consumer_partitions{state="closed"} 0`,
			`onceward_consumer_partitions{state="detaching"} 0`,
			`onceward_consumer_partitions{state="dropped"} 0`,
			`onceward_consumer_partitions_wrong 1`,
			`onceward_consumer_partitions_bytes 4096`,
			`onceward_consumer_partitions_ahead 14`,
			`onceward_consumer_partitions_overdue_seconds 7200`,
			`onceward_consumer_horizon_timestamp_seconds 1.7951328e+09`,
			`onceward_consumer_rows_overdue_seconds{table="attempts"} 0`,
			`onceward_consumer_rows_overdue_seconds{table="fences"} 60`,
			`onceward_consumer_floor_timestamp_seconds{class="*",group="billing"} 1.7951328e+09`,
			`onceward_consumer_floor_timestamp_seconds{class="Order*",group="billing"} 1.7951328e+09`,
			`onceward_consumer_floor_behind_seconds{class="*",group="billing"} 3600`,
			`onceward_consumer_floor_behind_seconds{class="Order*",group="billing"} 0`,
			`onceward_consumer_floor_stuck{class="*",group="billing"} 0`,
			`onceward_consumer_floor_stuck{class="Order*",group="billing"} 1`,
		}, series(page(t, c)))
	})
}

func TestMetricsAreClean(t *testing.T) {
	c := consumerprom.New()
	c.Observe(snapshot(time.Now()))
	c.Maintained(report())
	problems, err := promlint.New(strings.NewReader(page(t, c))).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
}

func TestObserveWhileScraped(t *testing.T) {
	c := consumerprom.New()
	var observer sync.WaitGroup
	observer.Go(func() {
		for range 1000 {
			c.Observe(snapshot(time.Now()))
			c.Maintained(report())
		}
	})
	for range 20 {
		page(t, c)
	}
	observer.Wait()
}

// Event types beyond a bound are one series: a handler of all types must not make
// one for each name that a producer thinks of.
func TestHandlersAreBounded(t *testing.T) {
	c := consumerprom.New()
	for i := range 200 {
		c.Handled("billing", "Type"+strconv.Itoa(i), 20*time.Millisecond)
	}
	c.Handled("billing", "Type7", 2*time.Millisecond)
	c.Handled("ledger", "Type150", time.Millisecond)
	text := page(t, c)
	require.Equal(t, 102, strings.Count(text, "handler_seconds_count{"))
	require.Contains(t, text, `onceward_consumer_handler_seconds_count{event_type="others",group="billing"} 100`)
	require.Contains(t, text, `onceward_consumer_handler_seconds_bucket{event_type="Type7",group="billing",le="0.0025"} 1`)
	require.Contains(t, text, `onceward_consumer_handler_seconds_count{event_type="Type7",group="billing"} 2`)
	require.Contains(t, text, `onceward_consumer_handler_seconds_count{event_type="Type150",group="ledger"} 1`)
}
