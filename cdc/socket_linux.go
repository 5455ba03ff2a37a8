package cdc

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// nearTime is how far a server may be for its window to be narrowed, there and back. A window
	// of half of nearBuffer is no limit then: it lets 100 MB a second through.
	nearTime   = 250 * time.Microsecond
	nearBuffer = 64 << 10 // of which the system makes half
	// hushBytes is from how much on the process is woken all the same.
	hushBytes = 1 << 20
)

// narrow gives a near server a small window. The server sends each message by itself, and what
// that costs it is the way through the network's layers, which on one machine ends with waking
// the reader. While the window is full its messages are put together instead, and
// go on their way when the reader takes what there is: an event costs the server half.
func narrow(raw syscall.RawConn) {
	_ = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil && info.Rtt > 0 && time.Duration(info.Rtt)*time.Microsecond <= nearTime {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, nearBuffer/2)
		}
	})
}

// hush has the system not wake the process for less than hushBytes, or for a byte again. A goroutine
// that sleeps does not keep its thread from being woken by the socket.
func hush(raw syscall.RawConn, yes bool) {
	least := 1
	if yes {
		least = hushBytes
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, least)
	})
}
