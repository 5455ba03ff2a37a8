//go:build !linux

package cdc

import "syscall"

// What socket_linux.go says of them is a matter of speed only.

const nearFull = inputBytes

func narrow(syscall.RawConn) {}

func hush(syscall.RawConn, bool) {}
