package cdc

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A near server has a small window, and what comes while the reader rests is there after it,
// also for who waits already.
func TestSocketOfANearServer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	near, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	far, err := listener.Accept()
	require.NoError(t, err)
	defer func() {
		require.NoError(t, near.Close())
		require.NoError(t, far.Close())
		require.NoError(t, listener.Close())
	}()
	client := newSocket(near, func() {})
	option := func(level, name int) (value int) {
		require.NoError(t, client.raw.Control(func(fd uintptr) {
			value, err = unix.GetsockoptInt(int(fd), level, name)
		}))
		require.NoError(t, err)
		return value
	}
	narrow(client.raw, time.Nanosecond)
	narrow(client.raw, time.Hour) // however busy this machine is
	require.Equal(t, nearWindow, option(unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP))

	require.NoError(t, client.SetReadDeadline(time.Now().Add(time.Minute)))
	got := make(chan error)
	read := func() { _, err := io.ReadFull(client, make([]byte, 5)); got <- err }
	for range 100 {
		client.hush(true)
		require.Greater(t, option(unix.SOL_SOCKET, unix.SO_RCVLOWAT), nearWindow)
		go read()
		_, err = far.Write([]byte("hello"))
		require.NoError(t, err)
		client.hush(false)
		require.Equal(t, 1, option(unix.SOL_SOCKET, unix.SO_RCVLOWAT))
		require.NoError(t, <-got)
	}

	const all = 10 << 20 // far more than the window
	go func() { _, err := far.Write(make([]byte, all)); got <- err }()
	_, err = io.CopyN(io.Discard, client, all)
	require.NoError(t, err)
	require.NoError(t, <-got)
}
