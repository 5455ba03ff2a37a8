package wire

import (
	"errors"
	"net"
	"sync"
	"time"
)

// errCut is what a connection is refused with after the cut.
var errCut = errors.New("connection cut, because the session is over")

// Dialer makes connections, as sarama and x/net/proxy want it.
type Dialer interface {
	Dial(network, addr string) (net.Conn, error)
}

// Wire makes connections, and ends all of them at once. It is a [Dialer], and safe for
// concurrent use.
type Wire struct {
	inner Dialer
	down  chan struct{} // closed by Cut

	mu    sync.Mutex
	conns map[net.Conn]struct{} // nil once cut
}

// New returns a wire that connects by inner.
func New(inner Dialer) *Wire {
	return &Wire{inner: inner, down: make(chan struct{}), conns: make(map[net.Conn]struct{})}
}

// Dial implements [Dialer].
func (w *Wire) Dial(network, addr string) (net.Conn, error) {
	conn, err := w.inner.Dial(network, addr)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conns == nil {
		_ = conn.Close()
		return nil, errCut
	}
	wired := &wired{Conn: conn, wire: w}
	w.conns[wired] = struct{}{}
	return wired, nil
}

// Cut closes all connections, and ends all pauses; there are no new ones. More calls do
// nothing.
func (w *Wire) Cut() {
	w.mu.Lock()
	conns := w.conns
	w.conns = nil
	w.mu.Unlock()
	if conns == nil {
		return
	}
	close(w.down)
	for conn := range conns {
		_ = conn.Close()
	}
}

// Pause waits, but no longer than until the cut.
func (w *Wire) Pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.down:
	}
}

// wired is one connection of a wire.
type wired struct {
	net.Conn
	wire *Wire
}

// Close implements net.Conn.
func (c *wired) Close() error {
	c.wire.mu.Lock()
	delete(c.wire.conns, c)
	c.wire.mu.Unlock()
	return c.Conn.Close()
}
