package kafkaproxy

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server answers every request with its correlation id and remembers it. A
// plain one echoes bytes.
type server struct {
	listener net.Listener
	tasks    sync.WaitGroup
	plain    bool
	came     chan request // room for all of a test

	mu      sync.Mutex
	conns   []net.Conn
	stopped bool
}

func startServer(t *testing.T, plain bool) *server {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &server{listener: listener, plain: plain, came: make(chan request, 100)}
	s.tasks.Go(s.accept)
	t.Cleanup(s.stop)
	return s
}

func (s *server) stop() {
	_ = s.listener.Close()
	s.mu.Lock()
	s.stopped = true // one may have been accepted, and not be in conns yet
	for _, c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.tasks.Wait()
}

func (s *server) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.conns = append(s.conns, conn)
		if s.stopped {
			_ = conn.Close()
		}
		s.mu.Unlock()
		s.tasks.Go(func() {
			defer conn.Close()
			if s.plain {
				_, _ = io.Copy(conn, conn)
				return
			}
			s.answer(conn)
		})
	}
}

func (s *server) answer(conn net.Conn) {
	for {
		frame, err := readFrame(conn)
		if err != nil {
			return
		}
		r, err := parseRequest(frame)
		if err != nil {
			return
		}
		s.came <- r
		reply := binary.BigEndian.AppendUint32([]byte{0, 0, 0, 4}, uint32(r.correlation))
		if _, err := conn.Write(reply); err != nil {
			return
		}
	}
}

// next returns the next request that the server got.
func (s *server) next(t *testing.T) request {
	t.Helper()
	select {
	case r := <-s.came:
		return r
	case <-within(t).Done():
		t.Fatal("no request came")
		return request{}
	}
}

// none makes sure that the server got nothing more. Whatever was on its way
// before the caller's last exchange has come by then.
func (s *server) none(t *testing.T) {
	t.Helper()
	require.Empty(t, s.came)
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// client is a connection through the proxy.
type client struct {
	t    *testing.T
	conn net.Conn
	name string
	last int32
}

func dial(t *testing.T, l *Link, name string) *client {
	t.Helper()
	conn, err := net.Dial("tcp", l.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	return &client{t: t, conn: conn, name: name}
}

func (c *client) send(k Key) {
	c.t.Helper()
	c.last++
	_, err := c.conn.Write(encode(request{key: k, version: 3, correlation: c.last, client: c.name}, []byte("body")))
	require.NoError(c.t, err)
}

// reply reads the answer to the last request.
func (c *client) reply() error {
	frame, err := readFrame(c.conn)
	if err == nil {
		var id int32
		id, err = correlationOf(frame)
		require.NoError(c.t, err)
		require.Equal(c.t, c.last, id)
	}
	return err
}

func (c *client) ask(k Key) {
	c.t.Helper()
	c.send(k)
	require.NoError(c.t, c.reply())
}

// pair is a network of one link before a server.
func pair(t *testing.T) (*Network, *Link, *server) {
	t.Helper()
	s := startServer(t, false)
	n := New()
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	l, err := n.Add(t.Context(), s.listener.Addr().String())
	require.NoError(t, err)
	return n, l, s
}

func TestWithoutFaultsEverythingPasses(t *testing.T) {
	n, l, s := pair(t)
	a, b := dial(t, l, "a"), dial(t, l, "b")
	for range 20 {
		a.ask(Produce)
		require.Equal(t, "a", s.next(t).client)
		b.ask(EndTxn)
		require.Equal(t, EndTxn, s.next(t).key)
	}
	require.Equal(t, 20, n.Seen(Produce, "a"))
	require.Zero(t, n.Seen(Produce, "b"))
	require.Equal(t, 20, n.Seen(EndTxn, ""))
}

func TestHoldKeepsARequestAndWhatIsBehindIt(t *testing.T) {
	n, l, s := pair(t)
	a, b := dial(t, l, "a"), dial(t, l, "b")
	held := n.Inject(Fault{Key: EndTxn, Action: Hold, Times: 1})
	a.ask(Produce)
	s.next(t)
	a.send(EndTxn)
	require.NoError(t, held.Wait(within(t), 1))
	b.ask(EndTxn) // only one is met
	require.Equal(t, "b", s.next(t).client)
	s.none(t)
	require.NoError(t, held.Deliver(within(t)))
	require.NoError(t, a.reply())
	require.Equal(t, "a", s.next(t).client)
	a.ask(EndTxn)
	require.Equal(t, 1, held.Hits())
}

func TestHeldRequestArrivesWhenItsClientHasGone(t *testing.T) {
	n, l, s := pair(t)
	a := dial(t, l, "a")
	held := n.Inject(Fault{Key: EndTxn, Action: Hold})
	a.send(EndTxn)
	require.NoError(t, held.Wait(within(t), 1))
	require.NoError(t, a.conn.Close())
	require.NoError(t, held.Deliver(within(t)))
	require.Equal(t, EndTxn, s.next(t).key)
}

func TestLateRequestArrivesAfterItsClientWentOn(t *testing.T) {
	n, l, s := pair(t)
	a := dial(t, l, "a")
	late := n.Inject(Fault{Key: EndTxn, Action: Late, Times: 1, Client: "a"})
	other := dial(t, l, "b")
	other.ask(EndTxn) // of another client
	s.next(t)
	a.send(EndTxn)
	require.Error(t, a.reply(), "the client is reset")
	again := dial(t, l, "a")
	again.ask(EndTxn)
	s.next(t)
	require.Equal(t, 2, l.Cut(), "what is held late is not cut")
	again = dial(t, l, "a")
	again.ask(Produce)
	require.Equal(t, Produce, s.next(t).key)
	s.none(t)
	require.NoError(t, late.Deliver(within(t)))
	require.Equal(t, EndTxn, s.next(t).key)
}

func TestHeldRequestIsLostWithItsServer(t *testing.T) {
	n, l, s := pair(t)
	a := dial(t, l, "a")
	late := n.Inject(Fault{Key: EndTxn, Action: Late})
	a.send(EndTxn)
	require.NoError(t, late.Wait(within(t), 1))
	s.stop()
	require.ErrorIs(t, late.Deliver(within(t)), ErrLost)
	s.none(t)
}

func TestDropReplyLetsTheServerWork(t *testing.T) {
	n, l, s := pair(t)
	a := dial(t, l, "a")
	dropped := n.Inject(Fault{Key: AddOffsetsToTxn, Action: DropReply, Times: 1})
	a.ask(Produce)
	s.next(t)
	a.send(AddOffsetsToTxn)
	require.Error(t, a.reply())
	require.NoError(t, dropped.Wait(within(t), 1))
	require.Equal(t, AddOffsetsToTxn, s.next(t).key, "the server has got it")
	dial(t, l, "a").ask(AddOffsetsToTxn)
}

func TestBreakLosesTheRequest(t *testing.T) {
	n, l, s := pair(t)
	a := dial(t, l, "a")
	broken := n.Inject(Fault{Key: InitProducerID, Action: Break})
	a.send(InitProducerID)
	require.Error(t, a.reply())
	require.NoError(t, broken.Wait(within(t), 1))
	broken.Release()
	dial(t, l, "b").ask(InitProducerID)
	require.Equal(t, "b", s.next(t).client, "the first has not come")
	require.Equal(t, 1, broken.Hits())
}

func TestCutAndRefuse(t *testing.T) {
	_, l, s := pair(t)
	a := dial(t, l, "a")
	a.ask(Produce)
	s.next(t)
	require.Equal(t, 1, l.Cut())
	require.Error(t, a.reply())
	l.Refuse(true)
	requireReset(t, l)
	l.Heal()
	dial(t, l, "a").ask(Produce)
	s.stop()
	requireReset(t, l) // nobody answers behind the proxy
}

func TestLeadLeadsNewConnectionsElsewhere(t *testing.T) {
	_, l, s := pair(t)
	open := dial(t, l, "open")
	open.ask(Produce)
	require.Equal(t, "open", s.next(t).client)
	other := startServer(t, false)
	l.Lead(other.listener.Addr().String())
	require.Equal(t, other.listener.Addr().String(), l.Server())
	dial(t, l, "new").ask(Produce)
	require.Equal(t, "new", other.next(t).client)
	open.ask(Produce)
	require.Equal(t, "open", s.next(t).client, "it stays where it was")
}

// requireReset connects and demands that the connection is reset, which may
// come before the connect has returned.
func requireReset(t *testing.T, l *Link) {
	t.Helper()
	conn, err := net.Dial("tcp", l.Addr())
	if err == nil {
		require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
		_, err = conn.Read(make([]byte, 1))
		_ = conn.Close()
	}
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

func TestStalledTrafficArrivesLater(t *testing.T) {
	for _, d := range []Direction{Up, Down} {
		_, l, s := pair(t)
		a := dial(t, l, "a")
		l.Shape(d, Traffic{Stalled: true})
		a.send(Produce)
		if d == Down {
			require.Equal(t, Produce, s.next(t).key, "the other direction passes")
		}
		require.NoError(t, a.conn.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
		require.ErrorIs(t, a.reply(), os.ErrDeadlineExceeded)
		s.none(t)
		require.NoError(t, a.conn.SetReadDeadline(time.Now().Add(10*time.Second)))
		l.Shape(d, Traffic{})
		require.NoError(t, a.reply())
	}
}

func TestTrafficIsSlowNarrowAndInPieces(t *testing.T) {
	_, l, _ := pair(t)
	a := dial(t, l, "a")
	l.Shape(Up, Traffic{Delay: 30 * time.Millisecond, Slice: 1})
	began := time.Now()
	a.ask(Produce)
	require.GreaterOrEqual(t, time.Since(began), 30*time.Millisecond)
	l.Shape(Up, Traffic{})
	l.Shape(Down, Traffic{BytesPerSecond: 200}) // a reply has 8 bytes
	began = time.Now()
	a.ask(Produce)
	require.GreaterOrEqual(t, time.Since(began), 40*time.Millisecond)
}

func TestPlainBytesPassBothWays(t *testing.T) {
	s := startServer(t, true)
	n := New()
	defer func() { require.NoError(t, n.Close()) }()
	l, err := n.AddPlain(t.Context(), s.listener.Addr().String())
	require.NoError(t, err)
	l.Shape(Up, Traffic{Slice: 1000})
	a := dial(t, l, "a")
	text := bytes.Repeat([]byte("no frames\x00"), 10_000)
	go func() { _, _ = a.conn.Write(text) }()
	back := make([]byte, len(text))
	_, err = io.ReadFull(a.conn, back)
	require.NoError(t, err)
	require.Equal(t, text, back)
	require.Equal(t, 1, n.Cut())
	_, err = a.conn.Read(back)
	require.False(t, err == nil || errors.Is(err, io.EOF), "a reset is no end: %v", err)
}

func TestWhatIsNoFrameEndsTheConnection(t *testing.T) {
	_, l, s := pair(t)
	a := dial(t, l, "a")
	_, err := a.conn.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	require.NoError(t, err)
	require.Error(t, a.reply())
	s.none(t)
}

func TestHealLetsEverythingGo(t *testing.T) {
	n, l, s := pair(t)
	a, b := dial(t, l, "a"), dial(t, l, "b")
	held := n.Inject(Fault{Key: EndTxn, Action: Hold})
	a.send(EndTxn)
	require.NoError(t, held.Wait(within(t), 1))
	l.Shape(Down, Traffic{Stalled: true})
	b.send(Produce)
	n.Heal()
	require.NoError(t, a.reply())
	require.NoError(t, b.reply())
	a.ask(EndTxn)
	s.next(t)
	require.Equal(t, 1, held.Hits())
}

func TestCloseLosesWhatIsHeld(t *testing.T) {
	n, l, _ := pair(t)
	a := dial(t, l, "a")
	late := n.Inject(Fault{Key: EndTxn, Action: Late})
	a.send(EndTxn)
	require.NoError(t, late.Wait(within(t), 1))
	require.NoError(t, n.Close())
	require.ErrorIs(t, late.Deliver(within(t)), ErrLost)
}
