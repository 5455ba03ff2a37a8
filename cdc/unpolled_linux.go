package cdc

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// unpolled is a connection of which Go's poller hears only while somebody waits for it. The poller
// waits for all its descriptors in one call, which returns whenever something comes on any: so a
// connection whose reader rests costs its sender, and us, a wake-up for each message that is sent.
//
// It does as net.Conn says, deadlines included.
type unpolled struct {
	fd            int
	in, out       *waiter
	local, remote net.Addr
	closed        atomic.Bool
}

// unpoll takes a connection out of the poller; the one that it gets is used no more, but where it returns that
// because it could not be done.
func unpoll(conn net.Conn) net.Conn {
	has, ok := conn.(syscall.Conn)
	if !ok {
		return conn
	}
	raw, err := has.SyscallConn()
	if err != nil {
		return conn
	}
	u := &unpolled{local: conn.LocalAddr(), remote: conn.RemoteAddr(), fd: -1}
	err = raw.Control(func(fd uintptr) { u.fd, _ = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if err != nil || u.fd < 0 {
		return conn
	}
	if u.in, err = newWaiter(u.fd, unix.EPOLLIN); err == nil {
		if u.out, err = newWaiter(u.fd, unix.EPOLLOUT); err == nil {
			_ = conn.Close() // its descriptor, and what the poller knows
			return u
		}
		_ = u.in.Close()
	}
	_ = unix.Close(u.fd)
	return conn
}

// Read implements net.Conn.
func (u *unpolled) Read(p []byte) (int, error) {
	n, err := u.in.until(func() (int, error) { return unix.Read(u.fd, p) })
	if err != nil {
		return 0, u.failed("read", err)
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Write implements net.Conn.
func (u *unpolled) Write(p []byte) (int, error) {
	written := 0
	_, err := u.out.until(func() (int, error) {
		for {
			n, err := unix.SendmsgN(u.fd, p[written:], nil, nil, unix.MSG_NOSIGNAL)
			if err != nil {
				return 0, err
			}
			if written += n; written == len(p) {
				return 0, nil
			}
		}
	})
	if err != nil {
		return written, u.failed("write", err)
	}
	return written, nil
}

// Close implements net.Conn.
func (u *unpolled) Close() error {
	if u.closed.Swap(true) {
		return u.failed("close", net.ErrClosed)
	}
	return errors.Join(u.in.Close(), u.out.Close(), unix.Close(u.fd)) // in this order: nobody is in Read or Write then
}

// failed says of what an error is, as net does.
func (u *unpolled) failed(op string, err error) error {
	var errno syscall.Errno
	switch {
	case u.closed.Load():
		err = net.ErrClosed
	case errors.As(err, &errno):
		err = os.NewSyscallError(op, errno)
	}
	return &net.OpError{Op: op, Net: u.local.Network(), Source: u.local, Addr: u.remote, Err: err}
}

// LocalAddr implements net.Conn.
func (u *unpolled) LocalAddr() net.Addr { return u.local }

// RemoteAddr implements net.Conn.
func (u *unpolled) RemoteAddr() net.Addr { return u.remote }

// SetDeadline implements net.Conn.
func (u *unpolled) SetDeadline(at time.Time) error {
	return errors.Join(u.SetReadDeadline(at), u.SetWriteDeadline(at))
}

// SetReadDeadline implements net.Conn.
func (u *unpolled) SetReadDeadline(at time.Time) error {
	if err := u.in.SetReadDeadline(at); err != nil {
		return u.failed("set", err)
	}
	return nil
}

// SetWriteDeadline implements net.Conn.
func (u *unpolled) SetWriteDeadline(at time.Time) error {
	if err := u.out.SetReadDeadline(at); err != nil {
		return u.failed("set", err)
	}
	return nil
}

// waiter is an epoll instance of one descriptor, which the poller knows in its place: it is ready when that is, once
// for each time that it was armed.
type waiter struct {
	*os.File
	raw    syscall.RawConn
	of     int
	events uint32
	mu     sync.Mutex // for whoever is in until
	came   [1]unix.EpollEvent
}

func newWaiter(fd int, events uint32) (*waiter, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	w := &waiter{of: fd, events: events | unix.EPOLLONESHOT}
	if err = errors.Join(unix.SetNonblock(ep, true), w.control(ep, unix.EPOLL_CTL_ADD, 0)); err != nil {
		return nil, errors.Join(err, unix.Close(ep))
	}
	w.File = os.NewFile(uintptr(ep), "epoll")
	if err = w.SetReadDeadline(time.Time{}); err == nil { // an error where the poller did not take it
		w.raw, err = w.SyscallConn()
	}
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// until calls until it is done, and waits before it does so again.
func (w *waiter) until(call func() (int, error)) (n int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	armed := false
	ended := w.raw.Read(func(ep uintptr) bool {
		for {
			if armed && !w.fired(int(ep)) {
				return false
			}
			armed = false
			n, err = call()
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if !errors.Is(err, unix.EAGAIN) {
				return true
			}
			if err = w.control(int(ep), unix.EPOLL_CTL_MOD, w.events); err != nil {
				return true
			}
			armed = true
		}
	})
	if ended != nil { // by a deadline, or by Close
		_ = w.raw.Control(func(ep uintptr) { _ = w.control(int(ep), unix.EPOLL_CTL_MOD, 0) })
		return 0, ended
	}
	return n, err
}

// fired reports whether what was armed for is there, and disarms if so. It has to be asked between arming and waiting:
// of what came before an instance does not say anything that it thinks it has said.
func (w *waiter) fired(ep int) bool {
	n, err := unix.EpollWait(ep, w.came[:], 0)
	return n > 0 && err == nil
}

func (w *waiter) control(ep, op int, events uint32) error {
	return unix.EpollCtl(ep, op, w.of, &unix.EpollEvent{Events: events, Fd: int32(w.of)})
}
