// Package loopback reserves TCP ports of 127.0.0.1 for the servers of tests,
// demo and stack. A server is told its port before it starts, keeps it while it
// is down, and its clients are told too, so that port 0 would not do.
//
// No other program that uses this package gets a reserved port, in whatever
// process or of whatever user: a [Reservation] holds the UDP port of the same
// number, which none of the servers needs. The system takes it back when the
// process dies, however it dies. Other programs are kept away by looking below
// the range from which Linux, macOS and Windows give ports to outgoing
// connections.
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
// look at the same time seldom meet.
const (
	first = 15_000
	last  = 29_999
	tries = 200 // of them in a row may be taken before something else is wrong
)

// Reservation is a set of ports that are this program's until Release, or its
// end. It must stay reachable as long as they are used.
type Reservation struct {
	ports []int
	locks []net.PacketConn // the UDP port of each
}

// Reserve reserves n different ports on which nobody listens. The caller releases
// them.
func Reserve(ctx context.Context, n int) (*Reservation, error) {
	r := new(Reservation)
	for range n {
		if err := r.one(ctx); err != nil {
			return nil, errors.Join(err, r.Release())
		}
	}
	return r, nil
}

// Ports returns the ports, in no order.
func (r *Reservation) Ports() []int { return r.ports }

// Release gives the ports back. It is safe to call twice.
func (r *Reservation) Release() error {
	var errs []error
	for _, lock := range r.locks {
		errs = append(errs, lock.Close())
	}
	r.locks = nil
	return errors.Join(errs...)
}

// one reserves one more port.
func (r *Reservation) one(ctx context.Context) error {
	var err error
	for range tries {
		port := first + rand.IntN(last-first+1) //nolint:gosec // G404: nobody gains by guessing it
		var lock net.PacketConn
		if lock, err = reserve(ctx, port); err == nil {
			r.ports, r.locks = append(r.ports, port), append(r.locks, lock)
			return nil
		}
	}
	return fmt.Errorf("find a free port between %d and %d: %d tries failed, the last: %w", first, last, tries, err)
}

// reserve takes the lock first: whoever has it may look whether the port is free,
// by listening on it for a moment, without being in another's way.
func reserve(ctx context.Context, port int) (net.PacketConn, error) {
	var config net.ListenConfig
	lock, err := config.ListenPacket(ctx, "udp", Address(port))
	if err != nil {
		return nil, err
	}
	listener, err := config.Listen(ctx, "tcp", Address(port))
	if err == nil {
		err = listener.Close()
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// Address returns 127.0.0.1:port.
func Address(port int) string { return net.JoinHostPort(Host, strconv.Itoa(port)) }
