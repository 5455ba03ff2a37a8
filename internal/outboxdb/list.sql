-- name: Snapshots :many
-- Snapshots says of every relay whether it has a published snapshot, and of when.
SELECT slot, relay, (published_snapshot IS NOT NULL)::boolean AS known, published_at FROM onceward.relay_state ORDER BY relay, slot;

-- name: ListPending :many
-- ListPending lists committed events that no published snapshot covers and no letter tells of, oldest transaction first. What is below a snapshot's xmin is covered by it, so that the index on tx_id finds the rest. Empty filters match all.
SELECT o.id, o.namespace, o.aggregate_type, o.aggregate_id, o.event_type, o.created_at, o.tx_id, o.seq
FROM onceward.outbox o
WHERE o.tx_id >= COALESCE((SELECT pg_catalog.pg_snapshot_xmin(s.published_snapshot) FROM onceward.relay_state s
    WHERE s.published_snapshot IS NOT NULL ORDER BY pg_catalog.pg_snapshot_xmin(s.published_snapshot) DESC LIMIT 1), '0'::xid8)
  AND NOT EXISTS (SELECT FROM onceward.relay_state s WHERE pg_catalog.pg_visible_in_snapshot(o.tx_id, s.published_snapshot))
  AND NOT EXISTS (SELECT FROM onceward.dead_letters d WHERE d.letter_id = o.id)
  AND (@namespace::text = '' OR o.namespace = @namespace)
  AND (@aggregate_type::text = '' OR o.aggregate_type = @aggregate_type)
  AND (@aggregate_id::text = '' OR o.aggregate_id = @aggregate_id)
  AND (@event_type::text = '' OR o.event_type = @event_type)
  AND (@older_seconds::float8 = 0 OR pg_catalog.date_part('epoch', pg_catalog.now() - o.created_at) >= @older_seconds)
ORDER BY o.tx_id, o.seq LIMIT @row_limit::int;

-- name: ListPublished :many
-- ListPublished lists events that some published snapshot covers and that are not dead, and those whose letter was published, newest transaction first.
SELECT o.id, o.namespace, o.aggregate_type, o.aggregate_id, o.event_type, o.created_at, o.tx_id, o.seq
FROM onceward.outbox o
WHERE (EXISTS (SELECT FROM onceward.relay_state s WHERE pg_catalog.pg_visible_in_snapshot(o.tx_id, s.published_snapshot))
    OR EXISTS (SELECT FROM onceward.dead_letters d WHERE d.letter_id = o.id AND d.state = 'replayed'))
  AND NOT EXISTS (SELECT FROM onceward.dead_letters d WHERE d.letter_id = o.id AND d.state <> 'replayed')
  AND (@namespace::text = '' OR o.namespace = @namespace)
  AND (@aggregate_type::text = '' OR o.aggregate_type = @aggregate_type)
  AND (@aggregate_id::text = '' OR o.aggregate_id = @aggregate_id)
  AND (@event_type::text = '' OR o.event_type = @event_type)
ORDER BY o.tx_id DESC, o.seq DESC LIMIT @row_limit::int;

-- name: ListDead :many
-- ListDead lists letters in the given states, oldest first; without states those that wait for a decision.
SELECT d.letter_id, d.namespace, d.aggregate_type, d.aggregate_id, d.event_type, d.created_at, d.tx_id, d.seq, d.slot, d.state, d.error_class, d.error, d.attempts
FROM onceward.dead_letters d
WHERE d.state = ANY(COALESCE(NULLIF(@states::text[], '{}'), '{open,retrying}'))
  AND (@namespace::text = '' OR d.namespace = @namespace)
  AND (@aggregate_type::text = '' OR d.aggregate_type = @aggregate_type)
  AND (@aggregate_id::text = '' OR d.aggregate_id = @aggregate_id)
  AND (@event_type::text = '' OR d.event_type = @event_type)
ORDER BY d.seq, d.slot LIMIT @row_limit::int;
