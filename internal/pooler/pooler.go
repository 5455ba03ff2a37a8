package pooler

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Err: the way to the database leads through a pooler that this use does not go
// well with.
var Err = errors.New("the database is reached through a pooler")

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

// Check refuses a pool whose mode uses a statement in more round trips than one, behind any
// pooler: the second may come to another session. What is described there and executed here is
// somebody else's statement; one that is prepared is not there, or, where the pooler sees to
// that, keeps the plan of before a change of its table on every session, for as long as that lives.
func Check(ctx context.Context, db *pgxpool.Pool) error {
	mode := db.Config().ConnConfig.DefaultQueryExecMode
	if mode != pgx.QueryExecModeCacheStatement && mode != pgx.QueryExecModeDescribeExec {
		return nil
	}
	conn, err := db.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("look for a pooler: %w", err)
	}
	defer conn.Release()
	behind, err := pooled(ctx, conn.Conn())
	if err == nil && behind {
		err = fmt.Errorf("%w, and pgx's mode %s uses a statement in more round trips than one, of which the second may come to another session: "+
			"set default_query_exec_mode=cache_describe, exec or simple_protocol in the pool's connection string", Err, mode)
	}
	return err
}
