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

// Enter makes a session that of the one maintainer, by the advisory lock, and
// bounds each of its waits for a lock. With the lock 0 it only bounds the waits:
// for a session that looks. The error is [ErrBusy] when another one is at it.
// now is the database's clock by then; leave gives the session back as it was; a
// broken one has nothing to give.
func Enter(ctx context.Context, conn *pgx.Conn, lock int64, timeout time.Duration) (now time.Time, leave func(), err error) {
	if lock != 0 {
		var mine bool
		if err := conn.QueryRow(ctx, "SELECT pg_catalog.pg_try_advisory_lock($1)", lock).Scan(&mine); err != nil {
			return now, nil, fmt.Errorf("take the maintainer's lock: %w", err)
		}
		if !mine {
			return now, nil, ErrBusy
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

// Clock is the database's clock, by which days begin and end.
func Clock(ctx context.Context, conn *pgx.Conn) (time.Time, error) {
	var now time.Time
	if err := conn.QueryRow(ctx, "SELECT pg_catalog.clock_timestamp()").Scan(&now); err != nil {
		return now, fmt.Errorf("read the database's clock: %w", err)
	}
	return now, nil
}
