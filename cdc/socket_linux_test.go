package cdc

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A near server has a small buffer, whose system says so when it connects; and what comes while the reader
// rests is there after it, also for who waits already.
func TestSocketOfANearServer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	conn, err := dialStream(t.Context(), "tcp", listener.Addr().String())
	require.NoError(t, err)
	far, err := listener.Accept()
	require.NoError(t, err)
	client := newSocket(conn, func() {})
	defer func() {
		require.NoError(t, client.Close())
		require.NoError(t, far.Close())
		require.NoError(t, listener.Close())
	}()
	option := func(name int) (value int) {
		require.NoError(t, client.raw.Control(func(fd uintptr) {
			value, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, name)
		}))
		require.NoError(t, err)
		return value
	}
	require.Equal(t, 2*nearBuffer, option(unix.SO_RCVBUF))
	require.Equal(t, nearFull, client.full)

	require.NoError(t, client.SetReadDeadline(time.Now().Add(time.Minute)))
	got := make(chan error)
	read := func() { _, err := io.ReadFull(client, make([]byte, 5)); got <- err }
	for range 100 {
		client.hush(true)
		require.GreaterOrEqual(t, option(unix.SO_RCVLOWAT), nearBuffer)
		go read()
		_, err = far.Write([]byte("hello"))
		require.NoError(t, err)
		client.hush(false)
		require.Equal(t, 1, option(unix.SO_RCVLOWAT))
		require.NoError(t, <-got)
	}

	const all = 10 << 20 // far more than the buffer
	go func() { _, err := far.Write(make([]byte, all)); got <- err }()
	_, err = io.CopyN(io.Discard, client, all)
	require.NoError(t, err)
	require.NoError(t, <-got)
}

// What the buffer holds of a near server is less than is taken at once: a read of a good part of it is no sign that the
// server had no more. Who rests then, as TLS lets it behind each of the server's messages, gets a buffer each 4 ms.
func TestAReadOfANearServerThatLeavesMore(t *testing.T) {
	near, far := net.Pipe()
	s := newSocket(near, func() {})
	read := func(came int) uint64 {
		go func() { _, _ = far.Write(make([]byte, came)) }()
		before := s.dry.Load()
		_, err := io.ReadFull(s, make([]byte, came))
		require.NoError(t, err)
		return s.dry.Load() - before
	}
	require.EqualValues(t, 1, read(inputBytes/2))
	require.EqualValues(t, 0, read(inputBytes))
	s.full = nearFull
	require.EqualValues(t, 0, read(nearFull))
	require.EqualValues(t, 1, read(nearFull-1))
	require.NoError(t, near.Close())
	require.NoError(t, far.Close())
}
