package testdb

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/pgserver"
)

var (
	mu      sync.Mutex
	servers = make(map[string]*pgserver.Server)
	counter atomic.Int64
)

// Main runs the tests of a package, stops its servers and returns the exit code.
// Call it as the whole body of TestMain: os.Exit(testdb.Main(m)).
func Main(m *testing.M) int {
	code := m.Run()
	for version, s := range servers {
		if err := s.Stop(context.Background()); err != nil {
			fmt.Fprintf(os.Stderr, "stop PostgreSQL %s: %v\n", version, err)
			code = 1
		}
	}
	return code
}

// New returns a pool over an empty database on a server of the major version,
// e.g. "15". The pool is closed and the database dropped when the test ends.
func New(t *testing.T, version string) *pgxpool.Pool {
	t.Helper()
	server := start(t, version)
	admin, err := pgx.Connect(t.Context(), server.DSN("postgres"))
	require.NoError(t, err)
	name := fmt.Sprintf("test_%d", counter.Add(1))
	_, err = admin.Exec(t.Context(), "CREATE DATABASE "+name)
	require.NoError(t, err)
	pool, err := pgxpool.New(t.Context(), server.DSN(name))
	require.NoError(t, err)
	t.Cleanup(func() {
		pool.Close()
		ctx := context.Background() // the test's own has ended
		_, err := admin.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
		require.NoError(t, err)
		require.NoError(t, admin.Close(ctx))
	})
	return pool
}

// DSN returns that of the superuser, in the database postgres of the package's server of
// the major version, for what makes databases of its own there.
func DSN(t *testing.T, version string) string {
	t.Helper()
	return start(t, version).DSN("postgres")
}

// Own returns a server of the test's own, which it may stop or break, and a pool over
// it. Both end with the test.
func Own(t *testing.T, options pgserver.Options) (*pgserver.Server, *pgxpool.Pool) {
	t.Helper()
	server := Server(t, options)
	pool, err := pgxpool.New(t.Context(), server.DSN("postgres"))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return server, pool
}

// Server is the server of [Own], without a pool.
func Server(t *testing.T, options pgserver.Options) *pgserver.Server {
	t.Helper()
	server, err := pgserver.Start(t.Context(), options)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
	return server
}

// start returns the package's server of the version. Another test that asks
// for it meanwhile waits.
func start(t *testing.T, version string) *pgserver.Server {
	t.Helper()
	mu.Lock()
	defer mu.Unlock()
	if s, ok := servers[version]; ok {
		return s
	}
	s, err := pgserver.Start(context.WithoutCancel(t.Context()), pgserver.Options{Version: version})
	require.NoError(t, err, "start PostgreSQL %s", version)
	servers[version] = s
	return s
}
