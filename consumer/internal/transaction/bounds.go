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
// another role, which [InOwnRole] leaves.
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

// InOwnRole runs statements of ours in the role that a bounded transaction began with, whatever its handler has set,
// and sets that again: what is deferred to the commit is the handler's. In a transaction that is not the bounded one
// any more, it is left as it is.
func InOwnRole(ctx context.Context, tx pgx.Tx, statements func() error) error {
	const ours = `SELECT pg_catalog.set_config('onceward.handlers_role', pg_catalog.current_setting('role'), true), pg_catalog.set_config('role', s.began, true)
		FROM (SELECT pg_catalog.current_setting('onceward.role', true) AS began) s WHERE s.began OPERATOR(pg_catalog.<>) ''`
	if _, err := tx.Exec(ctx, ours); err != nil {
		return fmt.Errorf("take the transaction's own role back: %w", err)
	}
	if err := statements(); err != nil {
		return err
	}
	const handlers = `SELECT pg_catalog.set_config('role', s.role, true)
		FROM (SELECT pg_catalog.current_setting('onceward.handlers_role', true) AS role) s WHERE s.role OPERATOR(pg_catalog.<>) ''`
	if _, err := tx.Exec(ctx, handlers); err != nil {
		return fmt.Errorf("give the handler's role back: %w", err)
	}
	return nil
}
