package publisher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/onceward/onceward/internal/kafkaconf"
	"github.com/onceward/onceward/publisher/internal/produce"
)

var errCut = errors.New("connection cut by the publisher")

// wire owns every connection of a publisher, so that it can end everything at
// once: cut ends backoffs and dials, and closes all connections. Close is bounded by
// that, and no request leaves after it.
type wire struct {
	dialContext func(ctx context.Context, network, address string) (net.Conn, error)
	down        chan struct{}
	foreign     chan error // that a broker is of another cluster

	mu    sync.Mutex
	conns map[*conn]struct{} // nil once cut
}

func newWire(dial func(ctx context.Context, network, address string) (net.Conn, error)) *wire {
	return &wire{
		dialContext: dial,
		down:        make(chan struct{}),
		foreign:     make(chan error, 1),
		conns:       make(map[*conn]struct{}),
	}
}

// cut ends all that waits on the network, now and from now on. It is safe to
// call more than once and from any goroutine, and does not block.
func (w *wire) cut() {
	w.mu.Lock()
	conns := w.conns
	w.conns = nil
	w.mu.Unlock()
	if conns == nil {
		return
	}
	close(w.down)
	for c := range conns {
		_ = c.Conn.Close() // whoever reads or writes on it gets the error
	}
}

// refuse hands over that a broker is of another cluster. Other errors pass: the
// address is dialed again.
func (w *wire) refuse(err error) {
	if !errors.Is(err, ErrOtherCluster) {
		return
	}
	select {
	case w.foreign <- err:
	default: // one is enough
	}
}

// pause waits, and reports false at once when the wire is cut.
func (w *wire) pause(d time.Duration) bool { return produce.Pause(d, w.down) }

// dial has a context of its own, because sarama's dialers are given none. The
// goroutine that ends it with the wire ends with the dial.
func (w *wire) dial(network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), kafkaconf.DialTimeout)
	defer cancel()
	go func() {
		select {
		case <-w.down:
			cancel()
		case <-ctx.Done():
		}
	}()
	raw, err := w.dialContext(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	c := &conn{Conn: raw, wire: w}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conns == nil {
		_ = raw.Close()
		return nil, errCut
	}
	w.conns[c] = struct{}{}
	return c, nil
}

// conn is a connection that the wire can close.
type conn struct {
	net.Conn
	wire *wire
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.wire.mu.Lock()
	delete(c.wire.conns, c)
	c.wire.mu.Unlock()
	return c.Conn.Close()
}
