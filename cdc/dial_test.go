package cdc

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// A connect has a limit, and the DSN's counts when it has one.
func TestBoundGivesAConnectALimit(t *testing.T) {
	for dsn, want := range map[string]time.Duration{
		"host=db user=u sslmode=disable": connectTimeout, "host=db user=u sslmode=disable connect_timeout=3": 3 * time.Second,
		"postgres://u@db/d?sslmode=disable&connect_timeout=60": time.Minute,
	} {
		conf, err := pgconn.ParseConfig(dsn)
		require.NoError(t, err)
		Bound(conf)
		require.Equal(t, want, conf.ConnectTimeout, dsn)
	}
}

// A server elsewhere keeps the buffer that its system sizes.
func TestNear(t *testing.T) {
	for _, c := range []struct {
		network, address string
		want             bool
	}{
		{"tcp4", "127.0.0.1:5432", true}, {"tcp", "127.8.0.1:1", true}, {"tcp6", "[::1]:5432", true}, {"tcp", "[::ffff:127.0.0.1]:5432", true},
		{"tcp4", "10.0.0.7:5432", false}, {"tcp6", "[fe80::1%eth0]:5432", false}, {"unix", "/run/.s.PGSQL.5432", false}, {"unix", "127.0.0.1:5432", false}, {"pipe", "pipe", false},
	} {
		require.Equal(t, c.want, near(c.network, c.address), "%s %s", c.network, c.address)
	}
}
