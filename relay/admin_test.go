package relay

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/outboxdb"
)

func testRelay(t *testing.T, tweak func(*Config)) *Relay {
	t.Helper()
	cfg, err := parse([]byte(minimal), nil)
	require.NoError(t, err)
	cfg.Postgres.DSN = "host=127.0.0.1 user=u sslmode=disable"
	cfg.Postgres.Insecure = true
	cfg.Kafka.Insecure = true
	if tweak != nil {
		tweak(&cfg)
	}
	r, err := New(cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return r
}

func get(t *testing.T, h http.Handler, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	body, err := io.ReadAll(w.Body)
	require.NoError(t, err)
	return w.Code, string(body)
}

func TestHealthAndReadinessAreHonest(t *testing.T) {
	r := testRelay(t, nil)
	h := r.Handler()
	for _, tc := range []struct {
		state           State
		healthy, ready  int
		err             error
		readyBodyShould string
	}{
		{StateConnecting, 200, 503, nil, "connecting"},
		{StateStreaming, 200, 200, nil, "streaming"},
		{StateStandby, 200, 200, nil, "standby"},
		{StateBackoff, 200, 503, errors.New("connection refused"), "connection refused"},
		{StateHalted, 200, 503, errors.New("skip it"), "skip it"}, // it waits for a word
		{StatePaused, 200, 503, nil, "paused"},
		{StateStopped, 200, 503, nil, "stopped"},
	} {
		r.setState(tc.state, tc.err)
		code, _ := get(t, h, "/healthz")
		require.Equal(t, tc.healthy, code, tc.state)
		code, body := get(t, h, "/readyz")
		require.Equal(t, tc.ready, code, tc.state)
		require.Contains(t, body, tc.readyBodyShould)
	}
	r.setState(StateStreaming, nil)
	r.setHeld(map[string]heldRoute{"shop.order": {"topic does not exist", 2}})
	code, body := get(t, h, "/readyz")
	require.Equal(t, 200, code, "the other routes go on")
	require.Contains(t, body, `"held":{"shop.order":"topic does not exist"}`)
	require.Regexp(t, `"waiting":\[{"for":"route","what":"shop.order","since":"[^"]+","detail":"topic does not exist","events":2}\]`, body)
	r.setHeld(nil)
	_, body = get(t, h, "/readyz")
	require.NotContains(t, body, "held")
	require.NotContains(t, body, "waiting")
	r.over.Store(true)
	code, _ = get(t, h, "/healthz")
	require.Equal(t, 503, code, "Run has returned an error")
}

func TestMetricsShowLagPublishedAndConfirmed(t *testing.T) {
	r := testRelay(t, nil)
	r.metrics.read(3)
	r.metrics.published(2, serverNow())
	r.metrics.observe(status{position: 0x20, oldest: serverNow(), inFlight: 1}, 0x10, 77)
	r.metrics.holding(map[string]heldRoute{"shop.order": {"missing", 3}})
	r.metrics.slot(outboxdb.SlotHealthRow{WalStatus: "extended", RetainedBytes: 5, LagBytes: 4, SafeBytes: -1, OldestSeconds: 3})
	r.metrics.waits([]Wait{{For: WaitKafka}})
	r.setState(StateStreaming, nil)
	_, body := get(t, r.Handler(), "/metrics")
	for _, want := range []string{
		`onceward_events_read_total{relay="orders"} 3`,
		`onceward_events_published_total{relay="orders"} 2`,
		`onceward_events_in_flight{relay="orders"} 1`,
		`onceward_confirmed_position_bytes{relay="orders"} 16`,
		`onceward_ended_position_bytes{relay="orders"} 32`,
		`onceward_queue_bytes{relay="orders"} 77`,
		`onceward_route_held{relay="orders",route="shop.order"} 1`,
		`onceward_slot_retained_bytes{relay="orders"} 5`,
		`onceward_slot_safe_bytes{relay="orders"} -1`,
		`onceward_slot_wal_status{relay="orders",status="extended"} 1`,
		`onceward_oldest_transaction_seconds{relay="orders"} 3`,
		`onceward_state{relay="orders",state="streaming"} 1`,
		`onceward_state{relay="orders",state="halted"} 0`,
		`onceward_waiting{for="kafka",relay="orders"} 1`,
		`onceward_waiting{for="standby",relay="orders"} 0`,
		`onceward_publish_delay_seconds_count{relay="orders"} 1`,
		`onceward_lag_seconds{relay="orders"}`,
	} {
		require.Contains(t, body, want)
	}
	require.NotContains(t, body, "onceward_partitions_ahead_days", "a relay that maintains nothing does not know")
	r.metrics.partitions(RetentionReport{Ahead: 14})
	_, body = get(t, r.Handler(), "/metrics")
	require.Contains(t, body, `onceward_partitions_ahead_days{relay="orders"} 14`)
}

func TestServeAdminStopsWithItsContext(t *testing.T) {
	r := testRelay(t, func(c *Config) { c.Admin.Listen = "127.0.0.1:0" })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.ServeAdmin(ctx) }()
	cancel()
	require.NoError(t, <-ended)
	off := testRelay(t, func(c *Config) { c.Admin.Listen = "off" })
	require.NoError(t, off.ServeAdmin(t.Context()))
}

func TestServeAdminNamesThePortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	r := testRelay(t, func(c *Config) { c.Admin.Listen = taken.Addr().String() })
	require.ErrorContains(t, r.ServeAdmin(t.Context()), "admin.listen")
}
