package relay

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/relay/internal/retry"
)

// muteServer accepts connections and says nothing, or logs everybody in and then
// says nothing.
type muteServer struct {
	listener net.Listener
	accepted atomic.Int64
	welcomes bool
	conns    chan net.Conn
}

func newMuteServer(t *testing.T, welcomes bool) *muteServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &muteServer{listener: listener, welcomes: welcomes, conns: make(chan net.Conn, 1000)}
	var tasks sync.WaitGroup
	tasks.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.conns <- conn
			s.accepted.Add(1)
			tasks.Go(func() { s.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		for len(s.conns) > 0 {
			_ = (<-s.conns).Close()
		}
		tasks.Wait()
	})
	return s
}

func (s *muteServer) serve(conn net.Conn) {
	if s.welcomes {
		backend := pgproto3.NewBackend(conn, conn)
		if _, err := backend.ReceiveStartupMessage(); err != nil {
			return
		}
		backend.Send(&pgproto3.AuthenticationOk{})
		backend.Send(&pgproto3.ParameterStatus{Name: "server_version", Value: "18.3"})
		backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if backend.Flush() != nil {
			return
		}
	}
	_, _ = io.Copy(io.Discard, conn) // until either end closes
}

func (s *muteServer) dsn(more string) string {
	host, port, _ := net.SplitHostPort(s.listener.Addr().String())
	return "host=" + host + " port=" + port + " user=u sslmode=disable" + more
}

// TestMuteServer: a server that accepts and never answers is given up in time,
// said, and tried again.
func TestMuteServer(t *testing.T) {
	for name, tc := range map[string]struct {
		welcomes bool
		says     string
	}{
		"mute at login": {false, "connect to PostgreSQL"},
		"mute after it": {true, "no answer within 1s: check the server, the tables and the publication"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newMuteServer(t, tc.welcomes)
			r := testRelay(t, func(c *Config) { c.Postgres.DSN = s.dsn(" connect_timeout=1") })
			tries := retry.New()
			tries.Limit = time.Second
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			began := time.Now()
			go func() { ended <- r.publish(ctx, tries) }()
			require.Eventually(t, func() bool { return strings.Contains(r.lastError(), tc.says) }, 10*time.Second, time.Millisecond)
			require.Less(t, time.Since(began), 5*time.Second)
			require.NotEqual(t, StateHalted, r.state())
			require.Equal(t, WaitPostgres, r.Health().Waiting[0].For)
			before := s.accepted.Load()
			require.Eventually(t, func() bool { return s.accepted.Load() > before }, 10*time.Second, time.Millisecond, "it is tried again")
			cancel()
			require.NoError(t, <-ended)
		})
	}
}

// Steps end in time; one without a limit does not, and neither does the end of
// the relay count as one.
func TestOpeningBoundsItsSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		tell := func(kind, step string) { told = append(told, kind+" "+step) }
		ctx, o := newOpening(t.Context(), time.Minute, tell)
		for range 3 {
			o.step("a")
			<-time.After(59 * time.Second)
		}
		o.unbounded(WaitSlot, "b")
		<-time.After(time.Hour)
		require.NoError(t, ctx.Err())
		o.step("c")
		<-ctx.Done()
		err := o.done(ctx, errors.New("context canceled"))
		var late *retry.NoAnswerError
		require.ErrorAs(t, err, &late)
		require.Equal(t, "no answer within 1m0s: c", err.Error())
		require.False(t, permanent(err))
		require.Equal(t, []string{"postgres a", "postgres a", "postgres a", "slot b", "postgres c"}, told)

		outer, cancel := context.WithCancel(t.Context())
		ctx, o = newOpening(outer, time.Minute, tell)
		o.step("a")
		cancel()
		require.ErrorIs(t, o.done(ctx, ctx.Err()), context.Canceled)
		require.NoError(t, o.done(ctx, nil))
	})
}
