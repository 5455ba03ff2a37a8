package testdb

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/loopback"
	"github.com/onceward/onceward/internal/process"
)

// PgBouncer starts a PgBouncer in transaction mode before the pool's database and
// returns a DSN that leads through it, to few server connections. `make deps`
// installs it.
func PgBouncer(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	binary, err := exec.LookPath("pgbouncer")
	if err != nil {
		binary, err = exec.LookPath("/usr/sbin/pgbouncer")
	}
	require.NoError(t, err, "PgBouncer is not installed; run make deps")
	user, err := process.Unprivileged()
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "pgbouncer") //nolint:usetesting // t.TempDir is closed to the other user
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, user.Own(dir))
	port, err := loopback.Reserve(t.Context(), 1)
	require.NoError(t, err)
	conf := pool.Config().ConnConfig
	config := fmt.Sprintf(`[databases]
%s = host=%s port=%d dbname=%[1]s user=%[4]s password=%[5]s
[pgbouncer]
listen_addr = %[6]s
listen_port = %[7]d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
min_pool_size = 2
ignore_startup_parameters = extra_float_digits
`, conf.Database, conf.Host, conf.Port, conf.User, conf.Password, loopback.Host, port.Ports()[0])
	file := filepath.Join(dir, "pgbouncer.ini")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	require.NoError(t, user.Own(file))
	log := filepath.Join(dir, "log")
	server, err := process.Start(process.Spec{Path: binary, Args: []string{file}, User: user, LogFile: log})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = server.Stop(context.Background(), syscall.SIGINT)
		_ = port.Release()
	})
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(conf.User, conf.Password), Host: loopback.Address(port.Ports()[0]), Path: conf.Database, RawQuery: "sslmode=disable",
	}
	require.Eventually(t, func() bool {
		conn, err := pgx.Connect(t.Context(), u.String())
		if err == nil {
			err = conn.Close(t.Context())
		}
		return err == nil
	}, time.Minute, 20*time.Millisecond, "PgBouncer does not answer: %s", log)
	return u.String()
}
