package partition

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrBusy: another session holds the maintainer's lock.
var ErrBusy = errors.New("another session is maintaining the partitions")

// StrangerError: who holds the maintainer's lock has no table of ours, and maintains
// nothing. Anybody who may log in can take such a lock.
type StrangerError struct {
	Role string
	PID  int32
}

// Error implements error.
func (e *StrangerError) Error() string {
	return fmt.Sprintf("role %q (PID %d), which owns no table of Onceward, holds the advisory lock by which one session at a time maintains the partitions: nobody makes those of tomorrow. "+
		"To mend it: end that session, as its role, as a superuser or with pg_signal_backend: SELECT pg_catalog.pg_terminate_backend(%d);", e.Role, e.PID, e.PID)
}

// Enter makes a session that of the one maintainer, by the advisory lock, and
// bounds each of its waits for a lock. With the lock 0 it only bounds the waits:
// for a session that looks. The error is [ErrBusy] when another one is at it, and a
// [*StrangerError] when somebody is who cannot be.
// now is the database's clock by then; leave gives the session back as it was; a
// broken one has nothing to give.
func Enter(ctx context.Context, conn *pgx.Conn, lock int64, timeout time.Duration) (now time.Time, leave func(),
	err error) {
	if lock != 0 {
		var mine bool
		if err := conn.QueryRow(ctx, "SELECT pg_catalog.pg_try_advisory_lock($1)", lock).Scan(&mine); err != nil {
			return now, nil, fmt.Errorf("take the maintainer's lock: %w", err)
		}
		if !mine {
			return now, nil, holder(ctx, conn, lock)
		}
	}
	leave = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_, _ = conn.Exec(ctx, "RESET lock_timeout")
		if lock != 0 {
			_, _ = conn.Exec(ctx, "SELECT pg_catalog.pg_advisory_unlock($1)", lock)
		}
	}
	if _, err := conn.Exec(ctx, "SELECT pg_catalog.set_config('lock_timeout', $1, false)", fmt.Sprintf("%dms", timeout.Milliseconds())); err != nil {
		leave()
		return now, nil, fmt.Errorf("set lock_timeout: %w", err)
	}
	if now, err = Clock(ctx, conn); err != nil {
		leave()
		return now, nil, err
	}
	return now, leave, nil
}

// holder is the error for a lock that another session has.
func holder(ctx context.Context, conn *pgx.Conn, lock int64) error {
	var who StrangerError
	err := conn.QueryRow(ctx, `SELECT a.pid, COALESCE(a.usename, '') FROM pg_catalog.pg_locks l
		JOIN pg_catalog.pg_database d ON d.oid OPERATOR(pg_catalog.=) l.database AND d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
		JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) l.pid
		WHERE l.locktype OPERATOR(pg_catalog.=) 'advisory' AND l.granted AND l.objsubid OPERATOR(pg_catalog.=) 1
		  AND l.classid OPERATOR(pg_catalog.=) $1 AND l.objid OPERATOR(pg_catalog.=) $2
		  AND NOT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.relnamespace OPERATOR(pg_catalog.=) pg_catalog.to_regnamespace('onceward')
		    AND c.relkind OPERATOR(pg_catalog.=) 'p' AND pg_catalog.pg_has_role(a.usesysid, c.relowner, 'MEMBER'))`,
		uint32(lock>>32), uint32(lock)).Scan(&who.PID, &who.Role)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return ErrBusy
	case err != nil:
		return fmt.Errorf("look who has the maintainer's lock: %w", err)
	}
	return &who
}

// Clock is the database's clock, by which days begin and end.
func Clock(ctx context.Context, conn *pgx.Conn) (time.Time, error) {
	var now time.Time
	if err := conn.QueryRow(ctx, "SELECT pg_catalog.clock_timestamp()").Scan(&now); err != nil {
		return now, fmt.Errorf("read the database's clock: %w", err)
	}
	return now, nil
}
