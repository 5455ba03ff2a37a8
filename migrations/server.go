package migrations

import (
	"context"
	"fmt"

	"github.com/onceward/onceward/internal/pgconf"
)

// refuseOldServer looks at the server before anything is made in it.
func refuseOldServer(ctx context.Context, q Querier) error {
	var version int
	err := q.QueryRow(ctx, "SELECT pg_catalog.current_setting('server_version_num')::pg_catalog.int4").Scan(&version)
	if err != nil {
		return fmt.Errorf("read the server's version: %w", err)
	}
	return supported(version)
}

// supported judges a server_version_num. Pure.
func supported(version int) error {
	if version >= pgconf.OldestServer {
		return nil
	}
	return fmt.Errorf("%w: it is PostgreSQL %d, and %d is the oldest that will do; upgrade it, or take another database; nothing was changed",
		ErrOldServer, version/10000, pgconf.OldestServer/10000)
}
