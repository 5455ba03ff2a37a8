package cdc

import (
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// nearBuffer is what the system may hold of a near server, before it is read. The system
	// makes twice as much of it, and counts what it has around a message, which is a thousand bytes.
	nearBuffer = 32 << 10
	// nearFull is what a read brings at least where the buffer was full.
	nearFull = nearBuffer / 4
)

// narrow gives a near server, before it is connected to, a small buffer. The server sends each message by
// itself, and what that costs it is the way through the network's layers, which on one machine includes those of
// the receiver. While the buffer is full its messages are put together instead, and go on their way when the
// reader takes what there is: an event costs the server half.
func narrow(raw syscall.RawConn) {
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, nearBuffer)
	})
}

// hush has the system not wake the process before the buffer of a near server is as good as full, or for a byte again:
// a goroutine that sleeps does not keep its thread from being woken by the socket.
func hush(raw syscall.RawConn, yes bool) {
	least := 1
	if yes {
		least = nearBuffer // half of the buffer, as it is counted: the system takes no more
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, least)
	})
}
