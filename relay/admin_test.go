package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/secret"
	"github.com/onceward/onceward/internal/secret/canary"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/retry"
	"github.com/onceward/onceward/relay/internal/stream"
	"github.com/onceward/onceward/relay/retention"
)

func testRelay(t *testing.T, tweak func(*Config)) *Relay {
	t.Helper()
	cfg := minimal()
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

// Profiles are there for whoever has asked for them.
func TestProfilesAreOptIn(t *testing.T) {
	const page = "/debug/pprof/heap"
	code, _ := get(t, testRelay(t, nil).Handler(nil), page)
	require.Equal(t, 404, code)
	code, body := get(t, testRelay(t, func(c *Config) { c.Admin.Pprof = true }).Handler(nil), page)
	require.Equal(t, 200, code)
	require.NotEmpty(t, body)
}

func TestHealthAndReadinessAreHonest(t *testing.T) {
	r := testRelay(t, nil)
	h := r.Handler(nil)
	for _, tc := range []struct {
		state           State
		healthy, ready  int
		err             error
		readyBodyShould string
	}{
		{StateConnecting, 200, 503, nil, "connecting"},
		{StateStreaming, 200, 200, nil, "streaming"},
		{StateStandby, 200, 200, nil, "standby"},
		{StateBackoff, 200, 503, errors.New("connection refused"), "SESSION_ENDED"},
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
	r.vitals.held(map[string]stream.HeldRoute{"shop.order": {Why: "topic does not exist", Events: 2}})
	code, body := get(t, h, "/readyz")
	require.Equal(t, 200, code, "the other routes go on")
	require.Contains(t, body, `"held":{"shop.order":"topic does not exist"}`)
	require.Regexp(t, `"waiting":\[{"for":"route","what":"shop.order","since":"[^"]+","detail":"topic does not exist","events":2}\]`, body)
	r.vitals.held(nil)
	_, body = get(t, h, "/readyz")
	require.NotContains(t, body, "held")
	require.NotContains(t, body, "waiting")
	r.over.Store(true)
	code, _ = get(t, h, "/healthz")
	require.Equal(t, 503, code, "Run has returned an error")
}

func TestStatsShowLagPublishedAndConfirmed(t *testing.T) {
	r := testRelay(t, nil)
	r.counts.Read(3)
	r.counts.Published(2, 0, serverNow())
	r.counts.observe(stream.Status{Position: 0x20, Oldest: serverNow(), InFlight: 1}, 0x10, 77)
	r.counts.Holding(map[string]stream.HeldRoute{"shop.order": {Why: "missing", Events: 3}})
	r.counts.slot(outboxdb.SlotHealthRow{WalStatus: "extended", RetainedBytes: 5, LagBytes: 4, SafeBytes: -1, OldestSeconds: 3})
	r.vitals.report(WaitKafka, Wait{Detail: "not answered"})
	r.setState(StateStreaming, nil)
	require.Zero(t, r.Stats().Throttled)
	until := serverNow()
	r.watch.session.Store(&watched{trouble: func(string) (string, time.Time) { return "", until }})
	s := r.Stats()
	r.counts.sent(150)
	require.EqualValues(t, 1, r.Stats().Requests.Buckets[200])
	require.EqualValues(t, 1, s.Delay.Count)
	require.EqualValues(t, 1, s.Delay.Buckets[300])
	require.Positive(t, s.Lag)
	require.Less(t, s.Lag, time.Minute)
	require.Equal(t, -1, s.PartitionsAhead, "nobody has counted yet")
	s.Delay, s.Commit, s.Requests, s.Lag, s.Waiting[0].Since = Histogram{}, Histogram{}, Histogram{}, 0, time.Time{}
	require.Equal(t, Stats{
		Relay: "orders", State: StateStreaming, Waiting: []Wait{{For: WaitKafka, Detail: "not answered"}},
		Read: 3, Published: 2, Skipped: map[string]uint64{}, Controls: map[string]uint64{},
		InFlight: 1, QueueBytes: 77, Throttled: until, Confirmed: 0x10, Ended: 0x20, Held: map[string]int{"shop.order": 3}, PartitionsAhead: -1,
		Slot: SlotStats{RetainedBytes: 5, LagBytes: 4, SafeBytes: -1, WALStatus: "extended", Oldest: 3 * time.Second},
	}, s)
	r.counts.partitions(retention.Report{Ahead: 14, Leaves: []retention.LeafReport{{State: retention.LeafOpen}, {State: retention.LeafOpen}, {State: retention.LeafClosed}}})
	require.Equal(t, 14, r.Stats().PartitionsAhead)
	require.Equal(t, map[retention.LeafState]int{retention.LeafOpen: 2, retention.LeafClosed: 1}, r.Stats().Partitions)
}

func TestHistogramCountsUpToItsBounds(t *testing.T) {
	h := newHistogram(.001, 1, 10)
	for _, seconds := range []float64{0, .001, 1, 2, 3600} {
		h.observe(seconds)
	}
	require.Equal(t, Histogram{Count: 5, Sum: 3603.001, Buckets: map[float64]uint64{.001: 2, 1: 3, 10: 4}}, h.look())
}

func TestServeAdminStopsWithItsContext(t *testing.T) {
	r := testRelay(t, func(c *Config) { c.Admin.Listen = "127.0.0.1:0" })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.ServeAdmin(ctx, nil) }()
	cancel()
	require.NoError(t, <-ended)
	off := testRelay(t, func(c *Config) { c.Admin.Listen = "off" })
	require.NoError(t, off.ServeAdmin(t.Context(), nil))
}

// What a driver or a server said is in the log, not on a page that needs no login.
func TestThePagesHoldNoWordOfADriver(t *testing.T) {
	r := testRelay(t, nil)
	const said = "their own words"
	_, refused := pgconn.Connect(t.Context(), "postgres://127.0.0.1:1/x?sslmode=disable")
	require.Error(t, refused)
	for _, tc := range []struct {
		state State
		err   error
		want  string
	}{
		{StateBackoff, errors.New(said), `"code":"SESSION_ENDED"`},
		{StateBackoff, fmt.Errorf("%s: %w", said, refused), `"code":"POSTGRES","error":"no connection to PostgreSQL;`},
		{StateHalted, fmt.Errorf("save: %w", &pgconn.PgError{Code: "42501", Message: said}), "SQLSTATE 42501"},
		{StateHalted, &cdc.StartError{Code: "SLOT_MISSING", What: "slot x is gone", Cure: "make it", Err: errors.New(said)}, `"code":"SLOT_MISSING","error":"slot x is gone. To mend it: make it"`},
		{StateHalted, fmt.Errorf("%s: %w", said, &FieldError{"kafka.mode", "unknown"}), `"code":"CONFIG","error":"config: kafka.mode: unknown"`},
		{StateHalted, &retry.RivalError{Err: errors.New(said)}, `"code":"RIVAL"`},
		{StateHalted, &cdc.DecodeError{Err: errors.New(said)}, `"code":"DECODE"`},
		{StateBackoff, fmt.Errorf("%w: %s", publisher.ErrFailed, said), `"code":"KAFKA"`},
		{StateBackoff, fmt.Errorf("%s: %w", said, &publisher.CheckpointError{Topic: "c", Reason: "is missing", Cure: "make it"}), `"code":"CHECKPOINT_TOPIC","error":"checkpoint topic \"c\" is missing; make it"`},
		{StateBackoff, fmt.Errorf("%s: %w", said, &secret.DSNError{Field: "postgres.dsn_file", Problem: "port"}), `"code":"DSN"`},
	} {
		r.setState(tc.state, tc.err)
		_, body := get(t, r.Handler(nil), "/readyz")
		require.Contains(t, body, tc.want)
		require.NotContains(t, body, said)
		r.setState(StateConnecting, nil)
		_, body = get(t, r.Handler(nil), "/readyz")
		require.Contains(t, body, tc.want, "while it tries again")
	}
	long := strings.Repeat("€", maxReason)
	r.setState(StateHalted, errors.New(long))
	_, body := get(t, r.Handler(nil), "/readyz")
	require.Less(t, len(body), 2*maxReason+400, "as the error, and as what waits")
	require.True(t, utf8.ValidString(body))
	require.Contains(t, body, `"code":"HALTED"`)
}

// A dsn_file is read anew for every session: whatever somebody writes into it while
// the relay runs, its password is in no line of the log and on no page.
func TestALiveRotationTellsNoPassword(t *testing.T) {
	file := filepath.Join(t.TempDir(), "dsn")
	require.NoError(t, os.WriteFile(file, []byte("host=127.0.0.1 port=1 user=u sslmode=disable"), 0o600))
	var log lockedBuffer
	good := testRelay(t, nil).cfg
	good.Postgres.DSN, good.Postgres.DSNFile = "", file
	synctest.Test(t, func(t *testing.T) {
		r, err := New(good, slog.New(slog.NewJSONHandler(&log, nil)))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		h := r.Handler(nil)
		for _, text := range append(canary.Strings(), canary.Misplaced()...) {
			require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
			before := log.Len()
			<-time.After(2 * retry.Max)
			synctest.Wait()
			require.Greater(t, log.Len(), before, text)
			_, body := get(t, h, "/readyz")
			require.NotContains(t, body+log.String()[before:]+r.lastError(), canary.Word, text)
		}
		cancel()
		require.NoError(t, <-ended)
	})
}

// lockedBuffer is a log that is read while it is written.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) Len() int { return len(b.String()) }

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// A connection that asks nothing does not stay for ever.
func TestAnIdleConnectionIsClosed(t *testing.T) {
	r := testRelay(t, nil)
	server := r.adminServer(nil)
	require.NotZero(t, server.IdleTimeout)
	require.NotZero(t, server.WriteTimeout)
	require.NotZero(t, server.ReadTimeout)
	require.NotZero(t, server.MaxHeaderBytes)
	server.IdleTimeout = 50 * time.Millisecond
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	conn, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"))
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	answer, err := io.ReadAll(conn) // ends when the server closes
	require.NoError(t, err)
	require.Contains(t, string(answer), "200 OK")
}

func TestServeAdminNamesThePortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	r := testRelay(t, func(c *Config) { c.Admin.Listen = taken.Addr().String() })
	require.ErrorContains(t, r.ServeAdmin(t.Context(), nil), "admin.listen")
}

// TestAProcessCanBeTold by its name, on its pages and in its log, as status shows it.
func TestAProcessCanBeTold(t *testing.T) {
	var log strings.Builder
	cfg := minimal()
	cfg.Postgres.DSN, cfg.Postgres.Insecure, cfg.Kafka.Insecure = "host=127.0.0.1 user=u sslmode=disable", true, true
	r, err := New(cfg, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	name := r.lookout.process
	for _, path := range []string{"/healthz", "/readyz"} {
		_, body := get(t, r.Handler(nil), path)
		require.Contains(t, body, `"process":"`+name+`"`)
	}
	r.log.InfoContext(t.Context(), "x")
	require.Contains(t, log.String(), " process="+name)
}
