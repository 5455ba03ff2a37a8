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
