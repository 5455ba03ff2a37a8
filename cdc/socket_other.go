//go:build !linux

package cdc

import (
	"syscall"
	"time"
)

// What socket_linux.go says of them is a matter of speed only.

const nearTime = 0

func narrow(syscall.RawConn, time.Duration) {}

func hush(syscall.RawConn, bool) {}
