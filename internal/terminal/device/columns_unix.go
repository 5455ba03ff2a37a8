//go:build unix

package device

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// columns asks a terminal how wide it is; 0: it does not say.
func columns(stream syscall.Conn) (width int) {
	raw, err := stream.SyscallConn()
	if err != nil {
		return 0
	}
	err = raw.Control(func(fd uintptr) {
		if size, err := unix.IoctlGetWinsize(int(fd), unix.TIOCGWINSZ); err == nil {
			width = int(size.Col)
		}
	})
	if err != nil {
		return 0
	}
	return width
}
