// Package wire makes the connections of a sarama client, so that all that the client waits
// for can be ended at once: most of what sarama asks Kafka for is given no context.
//
// Whoever makes a wire cuts it, or lets [Wire.Outlive] do so. A client whose wire is cut gets
// an error of whatever it has asked for, and of all that it asks for later. It starts no
// goroutine.
package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

// ErrCut: the wire was cut.
var ErrCut = errors.New("connection cut, because its owner has ended")

// Dialer is what sarama asks for connections.
type Dialer interface {
	Dial(network, addr string) (net.Conn, error)
}

// DialerOf is what a configuration would have a client connect by.
func DialerOf(s *sarama.Config) Dialer {
	if s.Net.Proxy.Enable {
		return s.Net.Proxy.Dialer
	}
	return &net.Dialer{Timeout: s.Net.DialTimeout, KeepAlive: s.Net.KeepAlive}
}

// Wire is that of a client, or of several. It is safe for concurrent use.
type Wire struct {
	inner Dialing
	down  chan struct{} // closed by Cut

	mu   sync.Mutex
	open map[io.Closer]struct{} // connections, and dials under way; nil once cut
}

// Dialing makes a connection.
type Dialing func(ctx context.Context, network, addr string) (net.Conn, error)

// New returns a wire that connects so.
func New(dial Dialing) *Wire {
	return &Wire{inner: dial, down: make(chan struct{}), open: make(map[io.Closer]struct{})}
}

// Into has the client of a configuration connect by a wire, on which it puts TLS.
func Into(s *sarama.Config) *Wire {
	d := DialerOf(s)
	dial := func(_ context.Context, network, addr string) (net.Conn, error) { return d.Dial(network, addr) }
	if d, ok := d.(interface {
		DialContext(ctx context.Context, network, addr string) (net.Conn, error)
	}); ok {
		dial = d.DialContext
	}
	w := New(dial)
	s.Net.Proxy.Enable, s.Net.Proxy.Dialer = true, w
	return w
}

// Dial implements the dialer of sarama.
func (w *Wire) Dial(network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(context.Background())
	under := &dial{cancel}
	defer cancel()
	if !w.add(under) {
		return nil, ErrCut
	}
	defer w.remove(under)
	conn, err := w.inner(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	wired := &wired{Conn: conn, wire: w}
	if !w.add(wired) {
		_ = conn.Close()
		return nil, ErrCut
	}
	return wired, nil
}

// add has the cut close c; false: it was.
func (w *Wire) add(c io.Closer) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open == nil {
		return false
	}
	w.open[c] = struct{}{}
	return true
}

func (w *Wire) remove(c io.Closer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.open, c)
}

// Outlive cuts the wire a while after ctx has ended, unless release is called before.
func (w *Wire) Outlive(ctx context.Context, d time.Duration) (release func()) {
	released, end := context.WithCancel(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(d, w.Cut)
		context.AfterFunc(released, func() { timer.Stop() })
	})
	return func() {
		unhook()
		end()
	}
}

// Cut closes all connections, and ends all pauses; there are no new ones. More calls do
// nothing.
func (w *Wire) Cut() {
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

// Down is closed by the cut.
func (w *Wire) Down() <-chan struct{} { return w.down }

// Pause waits, and reports false at once when the wire is cut.
func (w *Wire) Pause(d time.Duration) bool { return Pause(d, w.down) }

// Pause waits, and reports false at once when down is closed before.
func Pause(d time.Duration, down <-chan struct{}) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-down:
		return false
	}
}

// wired is one connection of a wire.
type wired struct {
	net.Conn
	wire *Wire
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
