-- name: Snapshots :many
-- Snapshots says of every relay whether it has a published snapshot, and of when.
SELECT r.slot, r.relay, (p.slot IS NOT NULL)::boolean AS known, p.taken_at
FROM onceward.relay_state r LEFT JOIN onceward.published_snapshots p ON p.slot = r.slot ORDER BY r.relay, r.slot;

-- name: ListByState :many
-- ListByState lists committed events that are in the state for some relay, or for that of the slot, oldest transaction first: pending, or one of a gap, before, gap or given-up. The ranges of transactions that can be in it lead the index on tx_id: what is below a snapshot's xmin is visible in it. Where no relay has run, everything is pending, and what is not decided otherwise for one that ran on another system. What the filled tables hold is of a gap where it would be published: filled_slots has the relay's slot of each. Empty filters match all.
WITH ranges AS (
  SELECT r.slot, CASE WHEN r.system_identifier = (SELECT system_identifier::text FROM pg_catalog.pg_control_system())
    THEN COALESCE(pg_catalog.pg_snapshot_xmin(p.snapshot), '0'::xid8) ELSE '0'::xid8 END AS low, '18446744073709551615'::xid8 AS high
  FROM onceward.relay_state r LEFT JOIN onceward.published_snapshots p ON p.slot = r.slot WHERE @state::text = 'pending'
  UNION ALL
  SELECT g.slot, pg_catalog.pg_snapshot_xmin(g.from_snapshot), pg_catalog.pg_snapshot_xmax(g.to_snapshot) FROM onceward.gaps g
  WHERE g.state = CASE @state::text WHEN 'pending' THEN 'repairing' WHEN 'gap' THEN 'open' WHEN 'given-up' THEN 'accepted' ELSE 'before' END
  UNION ALL
  SELECT DISTINCT f.slot, '0'::xid8, '18446744073709551615'::xid8 FROM pg_catalog.unnest(@filled_slots::text[]) f (slot) WHERE @state::text = 'gap'
  UNION ALL
  SELECT '', '0'::xid8, '18446744073709551615'::xid8 WHERE @state::text = 'pending' AND NOT EXISTS (SELECT FROM onceward.relay_state)
)
SELECT DISTINCT ON (o.tx_id, o.seq, o.id) o.id, o.namespace, o.aggregate_type, o.aggregate_id, o.event_type, o.created_at, o.tx_id, o.seq
FROM ranges x
CROSS JOIN LATERAL (SELECT i.* FROM onceward.outbox i WHERE i.tx_id >= x.low AND i.tx_id < x.high OFFSET 0) o
LEFT JOIN LATERAL onceward.account(o.id, o.tx_id, o.seq) AS a (slot, relay, state, gap_id, snapshot_at) ON a.slot = x.slot
WHERE (x.slot = '' OR @state::text = CASE WHEN a.state = 'published' AND pg_catalog.cardinality(@filled_slots::text[]) > 0
  AND EXISTS (SELECT FROM onceward.outbox h WHERE h.id = o.id AND (a.slot, h.tableoid) IN (
    SELECT pg_catalog.unnest(@filled_slots::text[]), pg_catalog.unnest(@filled_tables::oid[]))) THEN 'gap' ELSE a.state END)
  AND (@slot::text = '' OR x.slot = @slot)
  AND (@namespace::text = '' OR o.namespace = @namespace)
  AND (@aggregate_type::text = '' OR o.aggregate_type = @aggregate_type)
  AND (@aggregate_id::text = '' OR o.aggregate_id = @aggregate_id)
  AND (@event_type::text = '' OR o.event_type = @event_type)
  AND (@older_seconds::float8 = 0 OR pg_catalog.date_part('epoch', pg_catalog.now() - o.created_at) >= @older_seconds)
ORDER BY o.tx_id, o.seq, o.id LIMIT @row_limit::int;

-- name: ListPublished :many
-- ListPublished lists events that are published by every relay, or by that of the slot, newest transaction first. What the filled tables hold is not, as in ListByState.
SELECT o.id, o.namespace, o.aggregate_type, o.aggregate_id, o.event_type, o.created_at, o.tx_id, o.seq
FROM onceward.outbox o
WHERE (SELECT COALESCE(pg_catalog.bool_and(a.state = 'published' AND (a.slot, o.tableoid) NOT IN (
      SELECT pg_catalog.unnest(@filled_slots::text[]), pg_catalog.unnest(@filled_tables::oid[]))), false)
    FROM onceward.account(o.id, o.tx_id, o.seq) AS a (slot, relay, state, gap_id, snapshot_at) WHERE @slot::text = '' OR a.slot = @slot)
  AND (@namespace::text = '' OR o.namespace = @namespace)
  AND (@aggregate_type::text = '' OR o.aggregate_type = @aggregate_type)
  AND (@aggregate_id::text = '' OR o.aggregate_id = @aggregate_id)
  AND (@event_type::text = '' OR o.event_type = @event_type)
ORDER BY o.tx_id DESC, o.seq DESC LIMIT @row_limit::int;

-- name: ListWaiting :many
-- ListWaiting lists events that wait for their route, of every relay or that of the slot, in commit order. Empty filters match all.
SELECT o.id, o.namespace, o.aggregate_type, o.aggregate_id, o.event_type, o.created_at, o.tx_id, o.seq
FROM onceward.waiting w JOIN onceward.lanes l ON l.id = w.lane JOIN onceward.outbox o ON o.id = w.id AND o.tx_id = w.tx_id
WHERE NOT EXISTS (SELECT FROM onceward.dead_letters d WHERE d.slot = l.slot AND d.letter_id = o.id)
  AND (@slot::text = '' OR l.slot = @slot)
  AND (@namespace::text = '' OR o.namespace = @namespace)
  AND (@aggregate_type::text = '' OR o.aggregate_type = @aggregate_type)
  AND (@aggregate_id::text = '' OR o.aggregate_id = @aggregate_id)
  AND (@event_type::text = '' OR o.event_type = @event_type)
  AND (@older_seconds::float8 = 0 OR pg_catalog.date_part('epoch', pg_catalog.now() - o.created_at) >= @older_seconds)
ORDER BY w.position, w.ordinal LIMIT @row_limit::int;

-- name: WaitingReplays :one
-- WaitingReplays counts the replays that wait for their route, of every relay or of that of the slot. They are no events of the outbox.
SELECT pg_catalog.count(*) AS replays FROM onceward.waiting_copies c JOIN onceward.lanes l ON l.id = c.lane
WHERE c.kind = 'replay' AND (@slot::text = '' OR l.slot = @slot);

-- name: ListDead :many
-- ListDead lists letters in the given states, oldest first; without states those that wait for a decision.
SELECT d.letter_id, d.namespace, d.aggregate_type, d.aggregate_id, d.event_type, d.created_at, d.tx_id, d.seq, d.slot, d.state, d.error_class, d.error, d.attempts
FROM onceward.dead_letters d
WHERE d.state = ANY(COALESCE(NULLIF(@states::text[], '{}'), '{open,retrying}'))
  AND (@slot::text = '' OR d.slot = @slot)
  AND (@namespace::text = '' OR d.namespace = @namespace)
  AND (@aggregate_type::text = '' OR d.aggregate_type = @aggregate_type)
  AND (@aggregate_id::text = '' OR d.aggregate_id = @aggregate_id)
  AND (@event_type::text = '' OR d.event_type = @event_type)
ORDER BY d.seq, d.slot LIMIT @row_limit::int;
