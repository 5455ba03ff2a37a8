package transaction

import (
	"fmt"
	"time"
)

// Bounds are statements that bound a transaction. They have no parameters, so that
// they travel with BEGIN in one round trip.
//
// A claim whose commit PostgreSQL forgets in a crash would be a lost effect
// once the Kafka offset has moved: synchronous_commit is raised to "on" where
// the session asks for less, and left where it asks for more.
type Bounds struct {
	All     string
	Session string // the rest travels with the claim, with which the transaction begins
	Locks   string // the rest
}

// BoundsOf are those by which a claim waits so long for a lock, and a transaction may sit
// idle so long.
func BoundsOf(lock, session time.Duration) Bounds {
	b := Bounds{Session: fmt.Sprintf("SET LOCAL idle_in_transaction_session_timeout = %d", session.Milliseconds())}
	b.Locks = fmt.Sprintf(`SELECT pg_catalog.set_config('onceward.lock_timeout', CASE WHEN pg_catalog.current_setting('onceward.lock_timeout', true) OPERATOR(pg_catalog.<>) ''
    THEN pg_catalog.current_setting('onceward.lock_timeout') ELSE pg_catalog.current_setting('lock_timeout') END, true),
  pg_catalog.set_config('lock_timeout', '%d', true),
  CASE WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) ANY('{off,local,remote_write}'::pg_catalog.text[])
    THEN pg_catalog.set_config('synchronous_commit', 'on', true) END`,
		lock.Milliseconds())
	b.All = b.Session + ";\n" + b.Locks
	return b
}
