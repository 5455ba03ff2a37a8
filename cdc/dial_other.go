//go:build !linux

package cdc

import "syscall"

// setUserTimeout does nothing where there is no TCP_USER_TIMEOUT; keepalive
// finds a dead peer while nothing is being sent.
func setUserTimeout(string, string, syscall.RawConn) error { return nil }
