package cdc

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"
	"golang.org/x/sys/unix"
)

// unpolledPair returns both ends of a connection, of which the near one is out of the poller.
func unpolledPair(t *testing.T, network string) (near *unpolled, far net.Conn) {
	t.Helper()
	l, err := nettest.NewLocalListener(network)
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	polled, err := net.Dial(network, l.Addr().String())
	require.NoError(t, err)
	far, err = l.Accept()
	require.NoError(t, err)
	conn := unpoll(polled)
	require.IsType(t, near, conn)
	return conn.(*unpolled), far
}

// Out of the poller a connection does all that one of net's does.
func TestUnpolled(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
				near, far := unpolledPair(t, network)
				return near, far, func() { _, _ = near.Close(), far.Close() }, nil
			})
		})
	}
}

// readable reports whether a descriptor is within some ms.
func readable(fd, ms int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, ms)
	return err == nil && n == 1
}

// hears reports whether what comes would wake somebody, as the kernel says it.
func hears(t *testing.T, near *unpolled) (yes bool) {
	t.Helper()
	require.NoError(t, near.in.raw.Control(func(ep uintptr) {
		info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", ep))
		require.NoError(t, err)
		at := regexp.MustCompile(`events: +([0-9a-f]+)`).FindSubmatch(info)
		events, err := strconv.ParseUint(string(at[1]), 16, 32)
		require.NoError(t, err)
		yes = events&unix.EPOLLIN != 0
	}))
	return yes
}

// waiting waits until somebody waits in Read.
func waiting(t *testing.T, near *unpolled) {
	t.Helper()
	require.Eventually(t, func() bool { return hears(t, near) }, 10*time.Second, time.Millisecond)
}

// What comes while nobody waits for it wakes nobody.
func TestUnpolledIsDeafWhileNobodyReads(t *testing.T) {
	near, far := unpolledPair(t, "tcp")
	deaf := func() {
		_, err := far.Write([]byte("x"))
		require.NoError(t, err)
		require.True(t, readable(near.fd, 10_000))
		require.False(t, hears(t, near))
		require.NoError(t, near.in.raw.Control(func(ep uintptr) { require.False(t, readable(int(ep), 0)) }))
		_, err = near.Read(make([]byte, 1))
		require.NoError(t, err)
	}
	for range 3 {
		deaf()
		got := make(chan error)
		go func() {
			_, err := near.Read(make([]byte, 1))
			got <- err
		}()
		waiting(t, near)
		_, err := far.Write([]byte("x"))
		require.NoError(t, err)
		require.NoError(t, <-got)
		deaf()
		require.NoError(t, near.SetReadDeadline(time.Now().Add(time.Millisecond)))
		_, err = near.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, near.SetReadDeadline(time.Time{}))
	}
	require.NoError(t, near.Close())
	require.NoError(t, far.Close())
}

// What comes between a look and the wait for more is not slept through, the second time neither: of what an
// epoll instance said before, and was not asked for, it says nothing again.
func TestUnpolledHearsWhatComesBeforeItWaits(t *testing.T) {
	near, far := unpolledPair(t, "tcp")
	require.NoError(t, near.SetReadDeadline(time.Now().Add(10*time.Second)))
	for range 5 {
		got := make(chan error)
		go func() {
			_, err := near.Read(make([]byte, 1)) // waits
			got <- err
		}()
		waiting(t, near)
		_, err := far.Write([]byte("x"))
		require.NoError(t, err)
		require.NoError(t, <-got)
		looked := false
		_, err = near.in.until(func() (int, error) {
			n, err := unix.Read(near.fd, make([]byte, 1))
			if !looked {
				looked = true
				require.ErrorIs(t, err, unix.EAGAIN)
				_, err := far.Write([]byte("x"))
				require.NoError(t, err)
				require.True(t, readable(near.fd, 10_000))
			}
			return n, err
		})
		require.NoError(t, err)
	}
	require.NoError(t, near.Close())
	require.NoError(t, far.Close())
}

// A connection that is closed leaves no descriptor.
func TestUnpolledLeavesNothing(t *testing.T) {
	open := func() (n int) {
		links, err := filepath.Glob("/proc/self/fd/*")
		require.NoError(t, err)
		for _, l := range links {
			if to, err := os.Readlink(l); err == nil && (to == "anon_inode:[eventpoll]" || to[:min(6, len(to))] == "socket") {
				n++
			}
		}
		return n
	}
	near, far := unpolledPair(t, "tcp") // and the poller is there
	require.NoError(t, near.Close())
	require.NoError(t, far.Close())
	before := open()
	near, far = unpolledPair(t, "tcp")
	require.Equal(t, before+4, open()) // the far one, the near one, one of epoll in each direction
	require.NoError(t, near.Close())
	require.NoError(t, far.Close())
	require.Equal(t, before, open())
}
