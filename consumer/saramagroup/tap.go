package saramagroup

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"sync"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/internal/wire"
)

// tap makes the connections of a client and keeps the last answer that came, as
// it came: sarama shows nothing of an answer that it refuses. TLS is spoken here,
// because sarama would speak it above.
type tap struct {
	sarama *sarama.Config
	inner  wire.Dialer
	tls    *tls.Config // nil: plain text

	mu   sync.Mutex
	last []byte
}

// tapInto has the client of a configuration connect by a tap.
func tapInto(s *sarama.Config) *tap {
	t := &tap{sarama: s, inner: wire.DialerOf(s)}
	if s.Net.TLS.Enable {
		t.tls, s.Net.TLS.Enable = s.Net.TLS.Config, false
	}
	s.Net.Proxy.Enable, s.Net.Proxy.Dialer = true, t
	return t
}

// Dial implements the dialer of sarama.
func (t *tap) Dial(network, addr string) (net.Conn, error) {
	conn, err := t.inner.Dial(network, addr)
	if err != nil {
		return nil, err
	}
	if t.tls != nil {
		if conn, err = t.encrypted(conn, addr); err != nil {
			return nil, err
		}
	}
	return &tapped{Conn: conn, tap: t}, nil
}

func (t *tap) encrypted(conn net.Conn, addr string) (net.Conn, error) {
	cfg := t.tls.Clone()
	if cfg.ServerName == "" {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		cfg.ServerName = host
	}
	ctx, cancel := context.WithTimeout(context.Background(), t.sarama.Net.DialTimeout)
	defer cancel()
	secured := tls.Client(conn, cfg)
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return secured, nil
}

// answer returns what has come since the last request. The caller asks one thing
// at a time.
func (t *tap) answer() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.last)
}

// tapped is one connection of a tap.
type tapped struct {
	net.Conn
	tap *tap
}

// Write forgets the answer to what was asked before.
func (c *tapped) Write(b []byte) (int, error) {
	c.tap.mu.Lock()
	c.tap.last = nil
	c.tap.mu.Unlock()
	return c.Conn.Write(b)
}

// Read keeps what comes.
func (c *tapped) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.tap.mu.Lock()
	c.tap.last = append(c.tap.last, b[:n]...)
	c.tap.mu.Unlock()
	return n, err
}
