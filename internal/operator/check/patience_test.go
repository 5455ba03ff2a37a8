package check

import (
	"context"
	"net"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/relay"
)

// mute listens and never answers: a server that was frozen.
func mute(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var conns []net.Conn
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns = append(conns, conn)
		}
	}()
	t.Cleanup(func() {
		require.NoError(t, listener.Close())
		<-done
		for _, conn := range conns {
			_ = conn.Close()
		}
	})
	return listener.Addr().String()
}

func testConfig(t *testing.T) *relay.Config {
	t.Helper()
	cfg := relay.Default()
	cfg.Name, cfg.Admin.Listen = "orders", "127.0.0.1:0"
	cfg.Postgres.DSN, cfg.Postgres.Insecure = "postgres://u:p@"+mute(t)+"/d?sslmode=disable", true
	cfg.Kafka.Brokers, cfg.Kafka.Insecure = []string{mute(t)}, true
	cfg.Routes = []relay.RouteConfig{{Topic: "t"}}
	return &cfg
}

// A server that answers nothing ends its check, which says what it waited for; and
// what is known by then is told before.
func TestAMuteServerEndsItsCheck(t *testing.T) {
	var told []string
	r := &run{cfg: testConfig(t), patience: 300 * time.Millisecond, each: func(v Verdict) { told = append(told, v.Name) }}
	began := time.Now()
	r.all(t.Context())
	require.Less(t, time.Since(began), 5*time.Second)
	require.Len(t, told, len(r.verdicts))
	answers := make(map[string]Verdict)
	for _, v := range r.verdicts {
		answers[v.Name] = v
		require.NotContains(t, v.Detail, "context")
	}
	for name, waitedFor := range map[string]string{connection: "PostgreSQL", "Kafka": r.cfg.Kafka.Brokers[0]} {
		require.Equal(t, Failed, answers[name].Status, name)
		require.Equal(t, "NO_ANSWER", answers[name].Code)
		require.Contains(t, answers[name].Detail, "no answer within 300ms: waited for ")
		require.Contains(t, answers[name].Detail, waitedFor)
	}
	require.Equal(t, Skipped, answers["publication"].Status)
	require.Equal(t, OK, answers["admin.listen"].Status)
}

func TestInterruptedIsSaidSo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := &run{cfg: testConfig(t), patience: time.Minute}
	r.all(ctx)
	for _, v := range r.verdicts {
		require.NotContains(t, v.Detail, "context canceled", v.Name)
	}
}

func TestTheAdminAddressIsTried(t *testing.T) {
	cfg := testConfig(t)
	cfg.Admin.Listen = mute(t)
	v := admin(t.Context(), cfg)
	require.Equal(t, Failed, v.Status)
	require.Contains(t, v.Detail, "address already in use")

	r, err := relay.New(*testConfig(t), nil)
	require.NoError(t, err)
	server := httptest.NewServer(r.Handler(nil))
	defer server.Close()
	cfg.Admin.Listen = server.Listener.Addr().String()
	v = admin(t.Context(), cfg)
	require.Equal(t, Warning, v.Status)
	require.Contains(t, v.Detail, "taken by a relay that runs")
	cfg.Admin.Listen = "off"
	require.Equal(t, OK, admin(t.Context(), cfg).Status)
}
