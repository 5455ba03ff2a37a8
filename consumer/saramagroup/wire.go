package saramagroup

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

var errCut = errors.New("connection cut, because the session is over")

// wire makes the connections of a session's producers, so that all that they wait for
// can be ended at once: sarama's transactions are given no context. It is safe for
// concurrent use.
type wire struct {
	inner dialer
	down  chan struct{} // closed by cut

	mu    sync.Mutex
	conns map[net.Conn]struct{} // nil once cut
}

// wireInto has the client of a configuration connect by a wire, on which it puts TLS.
func wireInto(s *sarama.Config) *wire {
	w := &wire{inner: dialerOf(s), down: make(chan struct{}), conns: make(map[net.Conn]struct{})}
	s.Net.Proxy.Enable, s.Net.Proxy.Dialer = true, w
	return w
}

// Dial implements the dialer of sarama.
func (w *wire) Dial(network, addr string) (net.Conn, error) {
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

// cut closes all connections, and ends all pauses; there are no new ones. More calls do
// nothing.
func (w *wire) cut() {
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

// pause waits, but no longer than until the cut.
func (w *wire) pause(d time.Duration) {
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
	wire *wire
}

// Close implements net.Conn.
func (c *wired) Close() error {
	c.wire.mu.Lock()
	delete(c.wire.conns, c)
	c.wire.mu.Unlock()
	return c.Conn.Close()
}
