package pgtest

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/pgserver"
)

// Version is the environment variable that chooses the major version of PostgreSQL.
const Version = "TESTSERVER_POSTGRES"

// stopTimeout bounds the end of a server.
const stopTimeout = 30 * time.Second

// settings go on top of those of every server for tests: a call of consumertest.Exercise has
// up to 50 sessions, and several may run at once.
var settings = map[string]string{"max_connections": "300"}

// Start starts a PostgreSQL of its own for the test, and returns the DSN of its superuser in
// the database postgres. The first start of all may have to download; a start that takes
// longer than a minute after that has failed. It ends with the test. Several servers may run
// at once.
func Start(tb testing.TB) (dsn string) {
	tb.Helper()
	version := os.Getenv(Version)
	server, err := pgserver.Start(tb.Context(), pgserver.Options{Version: version, Settings: settings})
	if err != nil {
		if version != "" {
			err = fmt.Errorf("%s is %q: %w", Version, version, err)
		}
		tb.Fatalf("pgtest: %v", err)
		return ""
	}
	tb.Cleanup(func() {
		// The test's own context has ended.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), stopTimeout)
		defer cancel()
		if err := server.StopImmediate(ctx); err != nil { // nobody will read the data
			tb.Errorf("pgtest: %v", err)
		}
	})
	return server.DSN("postgres")
}
