//go:build !linux

package cdc

import (
	"net"
	"syscall"
)

// setUserTimeout does nothing where there is no TCP_USER_TIMEOUT; keepalive
// finds a dead peer while nothing is being sent.
func setUserTimeout(string, string, syscall.RawConn) error { return nil }

// unpoll does nothing where it was not tried.
func unpoll(conn net.Conn) net.Conn { return conn }
