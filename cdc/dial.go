package cdc

import (
	"context"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// peerTimeout is how long an unanswered connection may live: a peer that
// vanished without a word is found within it, whether we wait to read or have
// unacknowledged bytes. A server that is busy and mute answers at the TCP level,
// and lives.
const peerTimeout = 30 * time.Second

// ConnectTimeout is how long a connect may take, login included, when the DSN has
// no connect_timeout.
const ConnectTimeout = 10 * time.Second

// Bound makes a configuration's connections by [Dial], and bounds how long a
// connect may take.
func Bound(conf *pgconn.Config) {
	conf.DialFunc = Dial
	if conf.ConnectTimeout == 0 {
		conf.ConnectTimeout = ConnectTimeout
	}
}

// Dial connects with TCP keepalive and, on Linux, TCP_USER_TIMEOUT set, so that a
// dead peer is found although nothing is read from it for minutes. It fits
// pgconn.Config.DialFunc.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{
		Control:         setUserTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	return d.DialContext(ctx, network, address)
}
