// Package loopback finds free TCP ports of 127.0.0.1 for the servers of tests,
// demo and stack. It owns nothing after it has returned: between its answer and
// the server's start another program may take a port, and then the server's
// start fails and says so.
package loopback

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
)

// Host is the only address that our servers listen on.
const Host = "127.0.0.1"

// Ports returns n different free ports. They are found by listening on all of
// them at once, and are closed again when Ports returns.
func Ports(ctx context.Context, n int) (ports []int, err error) {
	var config net.ListenConfig
	held := make([]net.Listener, 0, n) // until the last port is found
	defer func() {
		for _, listener := range held {
			err = errors.Join(err, listener.Close())
		}
	}()
	for range n {
		listener, err := config.Listen(ctx, "tcp", Address(0))
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		held = append(held, listener)
		address, ok := listener.Addr().(*net.TCPAddr)
		if !ok {
			return nil, fmt.Errorf("find a free port: the listener has the address %v, which is not one of TCP", listener.Addr())
		}
		ports = append(ports, address.Port)
	}
	return ports, nil
}

// Address returns 127.0.0.1:port.
func Address(port int) string { return net.JoinHostPort(Host, strconv.Itoa(port)) }
