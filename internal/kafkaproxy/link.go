package kafkaproxy

import (
	"net"
	"sync"
	"time"
)

// Direction of bytes on a link.
type Direction int

// The directions.
const (
	Up   Direction = iota // from the client to the server
	Down                  // from the server to the client
)

// Traffic says how one direction of a [Link] passes bytes. The zero value
// passes them at once.
type Traffic struct {
	// Stalled passes nothing until it is shaped again; what was sent meanwhile
	// then arrives, as TCP does after an outage that no side has given up on.
	Stalled bool
	// Delay is the wait before each request or reply; on a plain link before
	// each piece that was read.
	Delay time.Duration
	// BytesPerSecond bounds the rate of each connection; 0 is no bound.
	BytesPerSecond int
	// Slice is the most bytes in one write, so that the reader gets pieces;
	// 0 is no bound.
	Slice int
}

// sliceForRate is what is written at once when only the rate is bounded.
const sliceForRate = 4 << 10

// Link is the way to one server. Its methods may be called at any time; faults
// apply to connections that are open and to those that come.
type Link struct {
	network  *Network
	plain    bool
	listener net.Listener
	gates    [2]gate

	mu       sync.Mutex
	upstream string
	refused  bool
	conns    map[*connection]struct{}
	closed   bool
}

// Addr returns the address that clients connect to, host:port.
func (l *Link) Addr() string { return l.listener.Addr().String() }

// Server returns the address that the link leads to, host:port.
func (l *Link) Server() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.upstream
}

// Lead leads every connection that comes from now on to another server, host:port.
// Those that are open stay.
func (l *Link) Lead(upstream string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.upstream = upstream
}

// Shape sets how one direction passes bytes from now on. Traffic{} heals it.
func (l *Link) Shape(d Direction, t Traffic) { l.gates[d].set(t) }

// Refuse resets every connection that is tried from now on, or no longer.
// Those that are open stay.
func (l *Link) Refuse(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused = on
}

// Cut resets all open connections, and returns how many. Requests that are
// held back on them are lost, but for those of [Late], which have left their
// client's connection already.
func (l *Link) Cut() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for c := range l.conns {
		if c.cut() {
			n++
		}
	}
	return n
}

// Heal ends all faults of the link.
func (l *Link) Heal() {
	l.Refuse(false)
	l.Shape(Up, Traffic{})
	l.Shape(Down, Traffic{})
}

// accept runs in the link's goroutine until the listener is closed.
func (l *Link) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return // closed: a listener of the loopback has no other failure that passes
		}
		l.network.tasks.Go(func() { l.serve(client) })
	}
}

// serve passes one connection through, in both directions, until it ends.
func (l *Link) serve(client net.Conn) {
	l.mu.Lock()
	refused, upstream := l.refused || l.closed, l.upstream
	l.mu.Unlock()
	if refused {
		reset(client)
		return
	}
	server, err := net.DialTimeout("tcp", upstream, dialTimeout) //nolint:noctx // bounded, and to this machine
	if err != nil {
		reset(client) // the server is down
		return
	}
	c := newConnection(l, client, server)
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		c.end(true)
		return
	}
	l.conns[c] = struct{}{}
	l.mu.Unlock()
	c.run()
	l.mu.Lock()
	delete(l.conns, c)
	l.mu.Unlock()
}

// close ends the listener and every connection.
func (l *Link) close() error {
	err := l.listener.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for c := range l.conns {
		c.end(true)
	}
	return err
}

// reset closes a connection so that the other side sees a reset, not an end.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// gate is where the bytes of one direction wait.
type gate struct {
	mu      sync.Mutex
	traffic Traffic
	changed chan struct{} // closed when traffic changes, and replaced
}

func (g *gate) set(t Traffic) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.traffic = t
	if g.changed != nil {
		close(g.changed)
	}
	g.changed = make(chan struct{})
}

func (g *gate) now() (Traffic, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.changed == nil {
		g.changed = make(chan struct{})
	}
	return g.traffic, g.changed
}

// write passes the bytes on as the traffic allows. It reports false when the
// connection has ended before all of them could go; an error of the write itself
// is the caller's to notice on the other side.
func (g *gate) write(to net.Conn, b []byte, ended <-chan struct{}) bool {
	if !g.wait(func(t Traffic) time.Duration { return t.Delay }, ended) {
		return false
	}
	for len(b) > 0 {
		t, _ := g.now()
		n := len(b)
		if t.Slice > 0 {
			n = min(n, t.Slice)
		} else if t.BytesPerSecond > 0 {
			n = min(n, sliceForRate)
		}
		pause := func(t Traffic) time.Duration {
			if t.BytesPerSecond == 0 {
				return 0
			}
			return time.Duration(n) * time.Second / time.Duration(t.BytesPerSecond)
		}
		if !g.wait(pause, ended) {
			return false
		}
		_, _ = to.Write(b[:n])
		b = b[n:]
	}
	return true
}

// wait waits while the traffic is stalled, and then for as long as it says.
func (g *gate) wait(pause func(Traffic) time.Duration, ended <-chan struct{}) bool {
	for {
		t, changed := g.now()
		var d time.Duration
		if !t.Stalled {
			if d = pause(t); d <= 0 {
				return true
			}
		}
		if passed, goOn := sleep(d, changed, ended); passed || !goOn {
			return passed
		}
	}
}

// sleep waits for d, or without a limit when d is 0. It reports whether the
// time has passed, and if not, whether it was only interrupted by a change.
func sleep(d time.Duration, changed, ended <-chan struct{}) (passed, goOn bool) {
	var over <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-over:
		return true, true
	case <-changed:
		return false, true
	case <-ended:
		return false, false
	}
}
