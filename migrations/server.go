package migrations

import (
	"context"
	"fmt"

	"github.com/onceward/onceward/internal/pgconf"
)

// refuseServer looks at the server and the database before anything is made there.
func refuseServer(ctx context.Context, q Querier) error {
	var version int
	var encoding string
	err := q.QueryRow(ctx, `SELECT pg_catalog.current_setting('server_version_num')::pg_catalog.int4,
		pg_catalog.current_setting('server_encoding')`).Scan(&version, &encoding)
	if err != nil {
		return fmt.Errorf("read the server's version and encoding: %w", err)
	}
	return supported(version, encoding)
}

// supported judges a server_version_num, and in what a database is encoded. Pure.
func supported(version int, encoding string) error {
	switch {
	case version < pgconf.OldestServer:
		return fmt.Errorf("%w: it is PostgreSQL %d, and %d is the oldest that will do; upgrade it, or take another database; nothing was changed",
			ErrOldServer, version/10000, pgconf.OldestServer/10000)
	case encoding != "UTF8":
		return fmt.Errorf("%w: it is %s, which cannot hold every text of events; take a database with ENCODING 'UTF8'; nothing was changed",
			ErrEncoding, encoding)
	}
	return nil
}
