package cdc

import (
	"bufio"
	"crypto/tls"
	"net"
	"sync/atomic"
)

// inputBytes is how much is taken from a connection at once.
const inputBytes = 64 << 10

// socket is a connection of which as much is taken at once as has come. TLS, which lies above
// it, gives out one record at a time, and the server sends each row in several: what
// has come of them is known here only. Reads are one goroutine's at a time, the rest is for any.
type socket struct {
	net.Conn
	in     *bufio.Reader
	before func()        // is called before what may have to wait; from a goroutine of pgx, too
	left   atomic.Int64  // bytes that were taken and not read
	dry    atomic.Uint64 // how often all was taken that there was
	taken  atomic.Int64  // bytes that were taken
}

func newSocket(conn net.Conn, before func()) *socket {
	s := &socket{Conn: conn, before: before}
	s.in = bufio.NewReaderSize(intake{s}, inputBytes)
	return s
}

// Read implements net.Conn.
func (s *socket) Read(p []byte) (int, error) {
	n, err := s.in.Read(p)
	s.left.Store(int64(s.in.Buffered()))
	return n, err
}

// intake is the connection below.
type intake struct{ *socket }

// Read implements io.Reader.
func (i intake) Read(p []byte) (int, error) {
	i.before()
	n, err := i.Conn.Read(p)
	i.taken.Add(int64(n))
	if n < len(p) {
		i.dry.Add(1)
	}
	return n, err
}

// socketOf returns the socket of a connection that was dialed as one.
func socketOf(conn net.Conn) *socket {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	if s, ok := conn.(*socket); ok {
		return s
	}
	return newSocket(conn, nil) // of which nothing is known: its reader never rests
}
