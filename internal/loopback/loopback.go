// Package loopback finds free TCP ports of 127.0.0.1 for the servers of tests,
// demo and stack. It owns nothing after it has returned: between its answer and
// the server's start another program may take a port, and then the server's
// start fails and says so.
//
// That is made unlikely by looking below the range from which Linux, macOS and
// Windows give ports to outgoing connections. A port from that range could be
// taken by any client in the moment before a server starts, or while a server
// that will come back on it is down.
package loopback

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Host is the only address that our servers listen on.
const Host = "127.0.0.1"

// Ports are looked for from first to last, at random, so that programs that
// look at the same time do not meet.
const (
	first = 15_000
	last  = 29_999
	tries = 200 // of them in a row may be taken before something else is wrong
)

// Ports returns n different free ports. They are found by listening on all of
// them at once, and are closed again when Ports returns.
func Ports(ctx context.Context, n int) (ports []int, err error) {
	held := make([]net.Listener, 0, n) // until the last port is found
	defer func() {
		for _, listener := range held {
			err = errors.Join(err, listener.Close())
		}
	}()
	for range n {
		port, listener, err := listen(ctx)
		if err != nil {
			return nil, err
		}
		ports, held = append(ports, port), append(held, listener)
	}
	return ports, nil
}

// listen listens on some port that is free.
func listen(ctx context.Context) (int, net.Listener, error) {
	var config net.ListenConfig
	var err error
	for range tries {
		port := first + rand.IntN(last-first+1) //nolint:gosec // G404: nobody gains by guessing it
		var listener net.Listener
		if listener, err = config.Listen(ctx, "tcp", Address(port)); err == nil {
			return port, listener, nil
		}
	}
	return 0, nil, fmt.Errorf("find a free port between %d and %d: %d tries failed, the last: %w", first, last, tries, err)
}

// Address returns 127.0.0.1:port.
func Address(port int) string { return net.JoinHostPort(Host, strconv.Itoa(port)) }
