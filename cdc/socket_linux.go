package cdc

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// nearTime is how far a server may be for its window to be kept small, there and back: on one machine, or nearly.
	nearTime = 100 * time.Microsecond
	// nearWindow is what every connection begins with: no limit so near.
	nearWindow = 64 << 10
	// nearBuffer is for what the system has around it: a message of 76 bytes takes a thousand. The
	// system makes twice as much of it, and may have a lower limit.
	nearBuffer = 1 << 20
	// hushBytes is from how much on the process is woken all the same.
	hushBytes = 1 << 20
)

// narrow keeps the window of a server small that is near. The server sends each message by itself, and what
// that costs it is the way through the network's layers, which on one machine ends with waking
// the reader. While the window is full its messages are put together instead, and
// go on their way when the reader takes what there is: an event costs the server half. The buffer is
// set as well, because one that the system sizes has it widen the window, too.
func narrow(raw syscall.RawConn, near time.Duration) {
	_ = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil && info.Rtt > 0 && time.Duration(info.Rtt)*time.Microsecond <= near {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, nearBuffer)
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, nearWindow)
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
