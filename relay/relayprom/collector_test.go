package relayprom

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/relay"
	"github.com/onceward/onceward/relay/retention"
)

// scraped returns what Prometheus gets.
func scraped(t *testing.T, c *Collector) string {
	t.Helper()
	answer := httptest.NewRecorder()
	c.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	require.Equal(t, 200, answer.Code)
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return string(text)
}

func numbers() relay.Stats {
	return relay.Stats{
		Relay: "orders", State: relay.StateStreaming, Waiting: []relay.Wait{{For: relay.WaitKafka}},
		Read: 3, Published: 2, Skipped: map[string]uint64{"gap": 4}, Controls: map[string]uint64{"retry": 5},
		Requests: relay.Histogram{Count: 2, Sum: 300, Buckets: map[float64]uint64{100: 1, 200: 2}},
		Delay:    relay.Histogram{Count: 1, Sum: .5, Buckets: map[float64]uint64{.25: 0, 1: 1}},
		InFlight: 1, QueueBytes: 77, Confirmed: 0x10, Ended: 0x20, Lag: 1500 * time.Millisecond, Snapshot: time.UnixMilli(1_700_000_000_500),
		Held: map[string]int{"shop.order": 3}, PartitionsAhead: -1, Partitions: map[retention.LeafState]int{retention.LeafOpen: 2},
		Slot: relay.SlotStats{RetainedBytes: 5, LagBytes: 4, SafeBytes: -1, WALStatus: "extended", Oldest: 3 * time.Second},
	}
}

func TestMetricsShowLagPublishedAndConfirmed(t *testing.T) {
	stats := numbers()
	c := collector(func() relay.Stats { return stats })
	c.LogDropped()
	body := scraped(t, c)
	for _, want := range []string{
		`onceward_events_read_total{relay="orders"} 3`,
		`onceward_events_published_total{relay="orders"} 2`,
		`onceward_events_skipped_total{reason="gap",relay="orders"} 4`,
		`onceward_controls_total{action="retry",relay="orders"} 5`,
		`onceward_events_in_flight{relay="orders"} 1`,
		`onceward_confirmed_position_bytes{relay="orders"} 16`,
		`onceward_ended_position_bytes{relay="orders"} 32`,
		`onceward_queue_bytes{relay="orders"} 77`,
		`onceward_kafka_throttle_seconds{relay="orders"} 0`,
		`onceward_route_held{relay="orders",route="shop.order"} 1`,
		`onceward_held_events{relay="orders",route="shop.order"} 3`,
		`onceward_slot_retained_bytes{relay="orders"} 5`,
		`onceward_slot_safe_bytes{relay="orders"} -1`,
		`onceward_slot_wal_status{relay="orders",status="extended"} 1`,
		`onceward_oldest_transaction_seconds{relay="orders"} 3`,
		`onceward_state{relay="orders",state="streaming"} 1`,
		`onceward_state{relay="orders",state="halted"} 0`,
		`onceward_waiting{for="kafka",relay="orders"} 1`,
		`onceward_waiting{for="standby",relay="orders"} 0`,
		`onceward_publish_delay_seconds_count{relay="orders"} 1`,
		`onceward_publish_delay_seconds_bucket{relay="orders",le="0.25"} 0`,
		`onceward_publish_delay_seconds_bucket{relay="orders",le="1"} 1`,
		`onceward_produce_request_records_sum{relay="orders"} 300`,
		`onceward_produce_request_records_bucket{relay="orders",le="100"} 1`,
		`onceward_lag_seconds{relay="orders"} 1.5`,
		`onceward_published_snapshot_timestamp_seconds{relay="orders"} 1.7000000005e+09`,
		`onceward_partitions{relay="orders",state="open"} 2`,
		`onceward_log_lines_dropped_total{relay="orders"} 1`,
	} {
		require.Contains(t, body, want+"\n")
	}
	require.NotContains(t, body, "onceward_partitions_ahead_seconds", "nobody has counted yet")
	stats.PartitionsAhead = 14
	require.Contains(t, scraped(t, c), `onceward_partitions_ahead_seconds{relay="orders"} 1.2096e+06`)
	stats.Throttled = time.Now().Add(time.Hour)
	require.Regexp(t, `onceward_kafka_throttle_seconds{relay="orders"} 3(600|5\d\d)(\.\d+)?\n`, scraped(t, c))
	stats.State = relay.StateStandby
	require.NotContains(t, scraped(t, c), "onceward_partitions_ahead_seconds", "who has the slot now counts them")
}

func TestMetricsAreClean(t *testing.T) {
	text := scraped(t, collector(func() relay.Stats {
		all := numbers()
		all.PartitionsAhead = 14
		return all
	}))
	var ours strings.Builder
	for line := range strings.Lines(text) {
		if strings.Contains(line, "onceward_") {
			ours.WriteString(line)
		}
	}
	problems, err := promlint.New(strings.NewReader(ours.String())).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
}

func TestNewShowsTheRelaysOwn(t *testing.T) {
	cfg := relay.Default()
	cfg.Name, cfg.Postgres.DSN, cfg.Postgres.Insecure, cfg.Kafka.Insecure = "orders", "host=127.0.0.1 user=u", true, true
	cfg.Kafka.Brokers, cfg.Routes = []string{"127.0.0.1:1"}, []relay.RouteConfig{{Topic: "t"}}
	r, err := relay.New(cfg, nil)
	require.NoError(t, err)
	require.Contains(t, scraped(t, New(r)), `onceward_state{relay="orders",state="connecting"} 1`)
}
