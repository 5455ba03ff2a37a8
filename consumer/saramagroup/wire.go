package saramagroup

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

var errCut = errors.New("connection cut, because the session is over")

// wire makes the connections of a client, so that all that it waits for can be ended at
// once: most of what sarama asks for is given no context. It is safe for concurrent use.
type wire struct {
	inner dialer
	down  chan struct{} // closed by cut

	mu   sync.Mutex
	open map[io.Closer]struct{} // connections, and dials under way; nil once cut
}

// wireInto has the client of a configuration connect by a wire, on which it puts TLS.
func wireInto(s *sarama.Config) *wire {
	w := &wire{inner: dialerOf(s), down: make(chan struct{}), open: make(map[io.Closer]struct{})}
	s.Net.Proxy.Enable, s.Net.Proxy.Dialer = true, w
	return w
}

// Dial implements the dialer of sarama.
func (w *wire) Dial(network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(context.Background())
	under := &dial{cancel}
	defer cancel()
	if !w.add(under) {
		return nil, errCut
	}
	defer w.remove(under)
	conn, err := w.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	wired := &wired{Conn: conn, wire: w}
	if !w.add(wired) {
		_ = conn.Close()
		return nil, errCut
	}
	return wired, nil
}

func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if d, ok := w.inner.(interface {
		DialContext(ctx context.Context, network, addr string) (net.Conn, error)
	}); ok {
		return d.DialContext(ctx, network, addr)
	}
	return w.inner.Dial(network, addr)
}

// add has the cut close c; false: it was.
func (w *wire) add(c io.Closer) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open == nil {
		return false
	}
	w.open[c] = struct{}{}
	return true
}

func (w *wire) remove(c io.Closer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.open, c)
}

// outlive cuts the wire a while after ctx has ended, until release is called.
func (w *wire) outlive(ctx context.Context, d time.Duration) (release func()) {
	lasts, end := drained(ctx, d)
	unhook := context.AfterFunc(lasts, w.cut)
	return func() {
		unhook()
		end()
	}
}

// cut closes all connections, and ends all pauses; there are no new ones. More calls do
// nothing.
func (w *wire) cut() {
	w.mu.Lock()
	open := w.open
	w.open = nil
	w.mu.Unlock()
	if open == nil {
		return
	}
	close(w.down)
	for c := range open {
		_ = c.Close()
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
	c.wire.remove(c)
	return c.Conn.Close()
}

// dial is one that is under way.
type dial struct{ cancel context.CancelFunc }

// Close implements io.Closer.
func (d *dial) Close() error {
	d.cancel()
	return nil
}
