package transaction

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Bounds is the statement that bounds a transaction, by which it waits so long for a lock and
// may sit idle so long. It has no parameters, and no effect when it is said twice. lock_timeout is to be
// given back before a handler runs: what that waits for is its own matter. A handler may set
// another role, which [OwnRole] takes back.
//
// A claim whose commit PostgreSQL forgets in a crash would be a lost effect
// once the Kafka offset has moved: synchronous_commit is raised to "on" where
// the session asks for less, and left where it asks for more.
func Bounds(lock, idle time.Duration) string {
	return fmt.Sprintf(`SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', '%d', true),
  pg_catalog.set_config('onceward.lock_timeout', CASE WHEN pg_catalog.current_setting('onceward.lock_timeout', true) OPERATOR(pg_catalog.<>) ''
    THEN pg_catalog.current_setting('onceward.lock_timeout') ELSE pg_catalog.current_setting('lock_timeout') END, true),
  pg_catalog.set_config('lock_timeout', '%d', true),
  pg_catalog.set_config('onceward.role', CASE WHEN pg_catalog.current_setting('onceward.role', true) OPERATOR(pg_catalog.<>) ''
    THEN pg_catalog.current_setting('onceward.role') ELSE pg_catalog.current_setting('role') END, true),
  CASE WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) ANY('{off,local,remote_write}'::pg_catalog.text[])
    THEN pg_catalog.set_config('synchronous_commit', 'on', true) END`, idle.Milliseconds(), lock.Milliseconds())
}

// OwnRole gives a bounded transaction the role that it began with, whatever its handler has set.
func OwnRole(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "SELECT pg_catalog.set_config('role', pg_catalog.current_setting('onceward.role'), true)")
	if err != nil {
		return fmt.Errorf("take the transaction's own role back: %w", err)
	}
	return nil
}
