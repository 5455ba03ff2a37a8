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

// connectTimeout is how long a connect may take, login included, when the DSN has
// no connect_timeout.
const connectTimeout = 10 * time.Second

// Bound makes a configuration's connections find a peer that is dead although
// nothing is read from it for minutes, and bounds how long a connect may take: to
// 10 seconds where the DSN has no connect_timeout.
func Bound(conf *pgconn.Config) {
	conf.DialFunc = dial
	if conf.ConnectTimeout == 0 {
		conf.ConnectTimeout = connectTimeout
	}
}

// dial connects with TCP keepalive and, on Linux, TCP_USER_TIMEOUT set, so that a
// dead peer is found although nothing is read from it for minutes. It fits
// pgconn.Config.DialFunc.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{
		Control:         setUserTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	return d.DialContext(ctx, network, address)
}
