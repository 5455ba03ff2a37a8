package migrations

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// lockKey is the advisory lock of all migrations, "onceward" in ASCII. Both
// sides share it, because they share the schema.
const lockKey int64 = 0x6f6e636577617264

// locked runs work while a session of its own holds the migration lock. The
// session is taken out of the pool and closed at the end, which frees the lock
// whatever happened; if it breaks meanwhile, the catalog's own locks still keep
// two runs from mixing, and one of them fails.
func (m *Migrator) locked(ctx context.Context, work func(context.Context) error) error {
	pooled, err := m.cfg.Pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	conn := pooled.Hijack()
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the server frees the lock in any case
	if err := m.lock(ctx, conn); err != nil {
		return err
	}
	return work(ctx)
}

func (m *Migrator) lock(ctx context.Context, conn *pgx.Conn) error {
	timeout := strconv.FormatInt(m.cfg.LockTimeout.Milliseconds(), 10)
	if _, err := conn.Exec(ctx, "SELECT pg_catalog.set_config('lock_timeout', $1, false)", timeout); err != nil {
		return fmt.Errorf("set lock_timeout: %w", err)
	}
	_, err := conn.Exec(ctx, "SELECT pg_catalog.pg_advisory_lock($1)", lockKey)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "55P03" { // lock_not_available
		return fmt.Errorf("%w in this database (pid %s holds the lock for more than %s); wait for it, or end it if it hangs",
			ErrLocked, lockHolder(ctx, conn), m.cfg.LockTimeout)
	}
	if err != nil {
		return fmt.Errorf("take the migration lock: %w", err)
	}
	return nil
}

// lockHolder names the session that holds the lock, or "unknown". A 64-bit key
// is shown by pg_locks in two halves, with objsubid 1.
func lockHolder(ctx context.Context, conn *pgx.Conn) string {
	const query = `SELECT pid::text FROM pg_catalog.pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 1
  AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
  AND classid::bigint = $1 AND objid::bigint = $2`
	var pid string
	if err := conn.QueryRow(ctx, query, lockKey>>32, lockKey&0xffffffff).Scan(&pid); err != nil {
		return "unknown"
	}
	return pid
}
