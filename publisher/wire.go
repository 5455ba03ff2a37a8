package publisher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/internal/kafkaconf"
)

var errCut = errors.New("connection cut by the publisher")

// wire owns every connection of a publisher, and with them two powers that
// sarama does not have.
//
// It can end everything at once: cut ends backoffs and dials, and closes all
// connections, so that Close is bounded.
//
// It is the gate that keeps order after a failure. sarama hands an error over
// on an unbuffered channel and only then turns to the partition's next batch.
// A gated write waits for a permit, and permits come from the goroutine that
// receives the errors, between two receives. So when the next batch asks, the
// error before it has been seen, and no permit is given any more.
type wire struct {
	dialContext func(ctx context.Context, network, address string) (net.Conn, error)
	permits     chan struct{}
	armed       atomic.Bool // gated writes need a permit
	down        chan struct{}
	foreign     chan error // that a broker is of another cluster

	mu    sync.Mutex
	conns map[*conn]struct{} // nil once cut
}

func newWire(dial func(ctx context.Context, network, address string) (net.Conn, error)) *wire {
	return &wire{
		dialContext: dial,
		permits:     make(chan struct{}),
		down:        make(chan struct{}),
		foreign:     make(chan error, 1),
		conns:       make(map[*conn]struct{}),
	}
}

// arm makes gated writes ask for a permit. Before it, the connection is set up
// and nobody gives permits.
func (w *wire) arm() { w.armed.Store(true) }

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
func (w *wire) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-w.down:
		return false
	}
}

// dial has a context of its own, because sarama's dialers are given none. The
// goroutine that ends it with the wire ends with the dial.
func (w *wire) dial(network, address string, gated bool) (net.Conn, error) {
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
	c := &conn{Conn: raw, wire: w, gated: gated}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conns == nil {
		_ = raw.Close()
		return nil, errCut
	}
	w.conns[c] = struct{}{}
	return c, nil
}

// conn is a connection that the wire can close, and gate.
type conn struct {
	net.Conn
	wire  *wire
	gated bool
}

// Write waits for a permit first. A request under TLS takes several writes; one
// that is refused halfway is never complete, so the broker ignores it.
func (c *conn) Write(b []byte) (int, error) {
	if c.gated && c.wire.armed.Load() {
		select {
		case <-c.wire.down:
			return 0, errCut
		default:
		}
		select {
		case <-c.wire.permits:
		case <-c.wire.down:
			return 0, errCut
		}
	}
	return c.Conn.Write(b)
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.wire.mu.Lock()
	delete(c.wire.conns, c)
	c.wire.mu.Unlock()
	return c.Conn.Close()
}
