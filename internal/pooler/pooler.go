package pooler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Err: the way to the database leads through a pooler that this use does not go
// well with.
var Err = errors.New("the database is reached through a pooler")

const cure = "set default_query_exec_mode=cache_describe, exec or simple_protocol in the pool's connection string"

// probeTimeout bounds the probe of a pooler. One with a single server connection
// makes two clients wait for one another.
const probeTimeout = 5 * time.Second

// pooled reports whether a connection leads to another session than it believes,
// as behind PgBouncer in transaction mode.
func pooled(ctx context.Context, conn *pgx.Conn) (bool, error) {
	var pid uint32
	if err := conn.QueryRow(ctx, "SELECT pg_catalog.pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&pid); err != nil {
		return false, fmt.Errorf("ask for the session: %w", err)
	}
	return pid != conn.PgConn().PID(), nil
}

// Direct refuses a connection through a pooler for what holds a session's lock.
func Direct(ctx context.Context, conn *pgx.Conn) error {
	behind, err := pooled(ctx, conn)
	if err == nil && behind {
		err = fmt.Errorf("%w, which can leave a session's lock behind for ever: connect directly for this", Err)
	}
	return err
}

// Check refuses a pool that keeps prepared statements behind a pooler that
// does not: every other transaction would fail. It refuses one that describes a
// statement and executes it in two round trips behind any pooler: the second may
// come to another session, which executes what somebody else has described there.
func Check(ctx context.Context, db *pgxpool.Pool) error {
	mode := db.Config().ConnConfig.DefaultQueryExecMode
	if mode != pgx.QueryExecModeCacheStatement && mode != pgx.QueryExecModeDescribeExec {
		return nil
	}
	first, err := db.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("look for a pooler: %w", err)
	}
	defer first.Release()
	behind, err := pooled(ctx, first.Conn())
	if err != nil || !behind {
		return err
	}
	if mode == pgx.QueryExecModeDescribeExec {
		return fmt.Errorf("%w, where default_query_exec_mode=describe_exec can execute another session's statement: %s", Err, cure)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	second, err := pgx.ConnectConfig(ctx, db.Config().ConnConfig.Copy())
	if err != nil {
		return fmt.Errorf("look for a pooler: %w", err)
	}
	defer second.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is held back
	if err := keepsStatements(ctx, first.Conn(), second); err != nil && ctx.Err() == nil {
		return fmt.Errorf("%w that does not keep prepared statements (PgBouncer before 1.21, or with max_prepared_statements = 0): %s: %w", Err, cure, err)
	}
	return nil
}

// keepsStatements uses a prepared statement of one name on two connections, in
// transactions that are open at once.
func keepsStatements(ctx context.Context, first, second *pgx.Conn) error {
	const name, sql = "onceward_probe", "SELECT 1"
	for _, conn := range []*pgx.Conn{first, second} {
		if _, err := conn.Prepare(ctx, name, sql); err != nil {
			return err
		}
	}
	defer func() { _ = first.Deallocate(context.WithoutCancel(ctx), name) }()
	return pgx.BeginFunc(ctx, second, func(other pgx.Tx) error {
		return pgx.BeginFunc(ctx, first, func(tx pgx.Tx) error {
			for _, t := range []pgx.Tx{tx, other} {
				if _, err := t.Exec(ctx, name); err != nil {
					return err
				}
			}
			return nil
		})
	})
}
