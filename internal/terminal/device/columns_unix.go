//go:build unix

package device

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// size asks a terminal how wide and high it is; 0: it does not say.
func size(stream syscall.Conn) (columns, lines int) {
	raw, err := stream.SyscallConn()
	if err != nil {
		return 0, 0
	}
	err = raw.Control(func(fd uintptr) {
		if size, err := unix.IoctlGetWinsize(int(fd), unix.TIOCGWINSZ); err == nil {
			columns, lines = int(size.Col), int(size.Row)
		}
	})
	if err != nil {
		return 0, 0
	}
	return columns, lines
}
