//go:build !unix

package device

import "syscall"

// columns: here only COLUMNS says how wide a terminal is.
func columns(syscall.Conn) int { return 0 }
