//go:build e2e

package retention

import (
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
)

// What somebody has decided about rows, or done with a partition by hand, and retention.

// acceptedGoes: what was given up or discarded keeps no partition, and nobody calls it
// published.
func acceptedGoes(o *oldOutbox) {
	for n := range 3 {
		require.NoError(o.t, o.enqueue(n+1))
	}
	o.maintain() // closes it
	o.relay("orders", o.now())
	o.exec(`INSERT INTO onceward.gaps (gap_id, slot, cause, detail, from_snapshot, to_snapshot, events, state)
		SELECT gen_random_uuid(), 'orders', 'SLOT_MISSING', '', '1:1:', s, 2, 'accepted' FROM (SELECT pg_snapshot_xmin(pg_current_snapshot())::text) x (x)
		CROSS JOIN LATERAL (SELECT (x || ':' || x || ':')::pg_snapshot) y (s)`)
	o.exec(`INSERT INTO onceward.dead_letters (slot, letter_id, namespace, aggregate_type, aggregate_id, event_type, content_type, created_at, tx_id, seq, position, error_class, error, state)
		SELECT 'orders', id, namespace, aggregate_type, aggregate_id, event_type, content_type, created_at, tx_id, seq, '0/1', 'record', '', 'discarded' FROM onceward.outbox ORDER BY id LIMIT 1`)
	const holds = "2 rows were given up (gap accept, relay orders); 1 row is a discarded dead letter of relay orders"
	o.became(LeafClosed, holds+"; every other row is published; would be dropped", func(c *Config) { c.DryRun = true })
	o.became(LeafDropped, holds+", and went with it")
}

// orderedAgain: a repair of what was given up is ordered before the leaf is detached, and
// keeps it; behind that it is refused.
func orderedAgain(o *oldOutbox) {
	require.NoError(o.t, o.enqueue(1))
	o.maintain() // closes it
	o.relay("orders", o.now())
	id := o.text(`INSERT INTO onceward.gaps (gap_id, slot, cause, detail, from_snapshot, to_snapshot, events, state)
		SELECT gen_random_uuid(), 'orders', 'SLOT_MISSING', '', '1:1:', pg_current_snapshot(), 1, 'accepted' RETURNING gap_id::text`)
	const repair = "SELECT onceward.decide_gap($1, 'accepted', 'repairing', 'because')"
	operator, err := dial(o.t, o.dsn).Begin(o.t.Context())
	require.NoError(o.t, err)
	_, err = operator.Exec(o.t.Context(), repair, id)
	require.NoError(o.t, err)
	o.became(LeafClosed, "an operator's order", func(c *Config) { c.LockTimeout = 100 * time.Millisecond })
	require.NoError(o.t, operator.Commit(o.t.Context()))
	o.became(LeafWaiting, "1 row is not published yet")
	const word = "SELECT obj_description(oid, 'pg_trigger') FROM pg_trigger WHERE tgrelid = $1::regclass AND tgname = 'onceward_closed'"
	require.NotContains(o.t, o.text(word, "onceward."+o.leaf), "detached")

	o.exec("UPDATE onceward.gaps SET state = 'accepted'")
	reader, err := dial(o.t, o.dsn).Begin(o.t.Context())
	require.NoError(o.t, err)
	_, err = reader.Exec(o.t.Context(), "SELECT FROM onceward.outbox")
	require.NoError(o.t, err)
	o.became(LeafDetaching, "waits for transactions", func(c *Config) { c.LockTimeout = 100 * time.Millisecond })
	require.Contains(o.t, o.text(word, "onceward."+o.leaf), ", and detached by it")
	_, err = o.owner.Exec(o.t.Context(), repair, id)
	require.ErrorContains(o.t, err, "no repair reads its events")
	o.became(LeafDetaching, "drops it; or attach it again (SET lock_timeout = '2s'; ALTER TABLE", func(c *Config) { c.Keep = 1000 })
	o.became(LeafDetaching, fmt.Sprintf("which waits for who reads it (pid %d)", reader.Conn().PgConn().PID()), func(c *Config) { c.Keep = 1000 })
	o.became(LeafDetaching, "closed; the next run goes on with it", func(c *Config) { c.DryRun = true })
	maintainer := o.conn
	o.conn = dial(o.t, o.as("onceward_operator"))
	o.became(LeafDetaching, "closed; not seen here whether the next run goes on with it: ", func(c *Config) { c.DryRun = true })
	o.conn = maintainer
	require.NoError(o.t, reader.Rollback(o.t.Context()))
	o.became(LeafDropped, "1 row was given up (gap accept, relay orders), and went with it")
}

func detachedByHand(o *oldOutbox) {
	require.NoError(o.t, o.enqueue(1))
	o.maintain()
	bounds := o.text("SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = $1", o.leaf)
	o.exec("ALTER TABLE onceward.outbox DETACH PARTITION onceward." + o.leaf)
	o.relay("orders", o.now())
	o.became(LeafDetaching, "it was detached by somebody")
	require.True(o.t, o.exists(), "a repair of what the relay finds by then does not read it")
	o.exec("ALTER TABLE onceward.outbox ATTACH PARTITION onceward." + o.leaf + " " + bounds)
	o.relay("orders", o.now())
	o.became(LeafDropped, "")
	require.False(o.t, o.exists())
}

// comesBack: a leaf that retention began to detach, and whose relay publishes nothing before it is gone (the database is
// a dump by now, and Kafka another), keeps nobody from going on: what is printed puts it back.
func comesBack(o *oldOutbox) {
	require.NoError(o.t, o.enqueue(1))
	o.maintain() // closes it
	o.relay("orders", o.now())
	reader, err := dial(o.t, o.dsn).Begin(o.t.Context())
	require.NoError(o.t, err)
	_, err = reader.Exec(o.t.Context(), "SELECT FROM onceward.outbox")
	require.NoError(o.t, err)
	o.became(LeafDetaching, "waits for transactions", func(c *Config) { c.LockTimeout = 100 * time.Millisecond })
	require.NoError(o.t, reader.Rollback(o.t.Context()))
	o.relay("orders", "1:1:")
	o.became(LeafWaiting, "waits for relay orders", func(c *Config) { c.DryRun = true })
	waiting := o.maintain()
	require.Equal(o.t, LeafWaiting, waiting.State, waiting.Why)
	_, cure, found := strings.Cut(waiting.Why, "or attach it again (")
	require.True(o.t, found, waiting.Why)
	cure, _, _ = strings.Cut(cure, "), which the relay")
	const leaving = "SELECT COALESCE(onceward.leaving_partition(), 'none')"
	require.Equal(o.t, "onceward."+o.leaf, o.text(leaving))
	for statement := range strings.SplitSeq(cure, "; ") {
		o.exec(statement)
	}
	o.became(LeafWaiting, "waits for relay orders")
	require.Equal(o.t, "none", o.text(leaving))
	o.relay("orders", o.now())
	o.became(LeafDropped, "")
}
