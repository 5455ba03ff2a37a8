//go:build e2e

package letters

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/relay/internal/testoutbox"
)

// The connection breaks in the transaction, or in the answer to its commit. The
// next session finds all of it or nothing.
func cutOff(b *letterbox) {
	t := b.T
	act := func(n int, action string, of any) error {
		_, err := b.Apply(t.Context(), wordOf(n, action, of), nil, testoutbox.LSN(n), false)
		return err
	}
	nothing := func() error { return nil }
	for _, w := range []struct {
		name         string
		arrange, cut func() error
		want         string
	}{
		{"park", nothing, func() error { return b.park(t.Context(), deadEvent(1, "A"), deadEvent(2, "A"), deadEvent(3, "B")) }, "1=open 2=open 3=open"},
		{"retry", nothing, func() error { return act(5, cdc.ActionRetry, "A") }, "1=retrying 2=retrying 3=open"},
		{"retry again", nothing, func() error { return act(5, cdc.ActionRetry, "A") }, "1=retrying 2=retrying 3=open"},
		{"fail", func() error { return act(5, cdc.ActionRetry, "A") }, func() error {
			return (&Release{letters: b.Store, control: testoutbox.ID(1_000_005)}).Fail(t.Context(), &Letter{ID: testoutbox.ID(2), Index: 1, Holds: true, Row: deadEvent(2, "A").Row}, "c", "e")
		}, "1=retrying 2=open 3=open"},
		{"settle", func() error { return act(5, cdc.ActionRetry, "A") }, func() error { return b.Settle(t.Context(), testoutbox.LSN(6)) }, "1=replayed 2=open 3=open"},
		{"discard", nothing, func() error { return act(7, cdc.ActionDiscard, "B") }, "1=replayed 2=open 3=discarded"},
		{"skip", func() error {
			b.Exec("UPDATE onceward.relay_state SET skip = ARRAY[$1::uuid]", testoutbox.ID(8))
			return nil
		}, func() error {
			_, err := b.Skip(t.Context(), deadEvent(8, "C"))
			return err
		}, "1=replayed 2=open 3=discarded 8=discarded"},
	} {
		b.Conn = testoutbox.Connected(t, b.As("onceward_relay"))
		b.reopen(0)
		require.NoError(t, w.arrange())
		b.cutInTransaction(w.name, w.cut)

		wire := new(deafConn)
		b.Conn = wire.dial(t, b.As("onceward_relay"))
		b.reopen(0)
		require.NoError(t, w.arrange())
		wire.armed.Store(true)
		require.Error(t, w.cut(), w.name)
		require.Equal(t, w.want, b.states(), w.name)
	}
	b.Conn = testoutbox.Connected(t, b.As("onceward_relay"))
	b.reopen(testoutbox.LSN(8))
	require.EqualValues(t, 4+8, b.State.Written, "letters, and what a control or a failure did to them")
	require.True(t, b.follows(9, "A"))
	require.Equal(t, 1, b.ParkedCount())
}

// cutInTransaction lets a write wait for the relay's row and terminates it there.
func (b *letterbox) cutInTransaction(name string, cut func() error) {
	t := b.T
	t.Helper()
	before := b.everything()
	lock, err := testoutbox.Connected(t, b.DSN).Begin(t.Context())
	require.NoError(t, err)
	_, err = lock.Exec(t.Context(), "SELECT FROM onceward.relay_state FOR UPDATE")
	require.NoError(t, err)
	failed := make(chan error, 1)
	go func() { failed <- cut() }()
	require.Eventually(t, func() bool {
		return b.Text("SELECT count(*)::text FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'", b.Conn.PgConn().PID()) == "1"
	}, 10*time.Second, time.Millisecond, name)
	b.Text("SELECT pg_terminate_backend($1)::text", b.Conn.PgConn().PID())
	require.Error(t, <-failed)
	require.NoError(t, lock.Rollback(t.Context()))
	require.Equal(t, before, b.everything(), name)
}

// deafConn is a connection that sends a commit and loses the answer once it is there:
// pgx cancels what it has heard no answer to, and a commit that has not begun is rolled back.
type deafConn struct {
	net.Conn
	armed, deaf atomic.Bool
}

func (c *deafConn) dial(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conf, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	conf.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		var d net.Dialer
		c.Conn, err = d.DialContext(ctx, network, addr)
		return c, err
	}
	conn, err := pgx.ConnectConfig(t.Context(), conf)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func (c *deafConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if c.armed.Load() && bytes.Contains(p, []byte("commit")) {
		c.deaf.Store(true)
	}
	return n, err
}

func (c *deafConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.deaf.Load() {
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// The server takes a transaction for idle while the
// statement of a large letter is on its way. It must not end the session by that, at
// the same row again and again.
func slowLinkOfALargeLetter(b *letterbox) {
	t := b.T
	config, err := pgx.ParseConfig(b.As("onceward_relay"))
	require.NoError(t, err)
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return slowConn{conn}, err
	}
	b.Conn, err = pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Conn.Close(context.Background()) })
	b.reopen(0)
	_, err = b.Conn.Exec(t.Context(), "SET idle_in_transaction_session_timeout = '300ms'") // shorter than the product's, for the test
	require.NoError(t, err)
	b.parks(deadEvent(1, "A", func(c *Dead) { c.Row.Payload = make([]byte, 4*BatchBytes) }))
	require.Equal(t, "1", b.Text("SELECT count(*)::text FROM onceward.dead_letters"))
}

// slowConn takes 256 KiB in 100 milliseconds.
type slowConn struct{ net.Conn }

func (c slowConn) Write(p []byte) (n int, err error) {
	for len(p) > 0 && err == nil {
		part := p[:min(len(p), 256<<10)]
		if len(part) == 256<<10 {
			<-time.After(100 * time.Millisecond)
		}
		var m int
		m, err = c.Conn.Write(part)
		n, p = n+m, p[m:]
	}
	return n, err
}
