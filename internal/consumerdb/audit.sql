-- Audit: what must never be seen. An empty group means all.

-- name: LooseFences :many
-- LooseFences counts, by group, PENDING fences whose lease ran out more than an hour ago, and those that wait for an operator, as ListPendingFences has them.
SELECT consumer_group, pg_catalog.count(*) AS fences, pg_catalog.count(*) FILTER (WHERE provider_key_until < pg_catalog.clock_timestamp() OR stuck IS NOT NULL) AS waiting,
  pg_catalog.min(lease_until)::timestamptz AS since
FROM onceward.fences
WHERE status = 'PENDING' AND expires_at IS NULL AND lease_until < pg_catalog.clock_timestamp() - interval '1 hour' AND (@consumer_group::text = '' OR consumer_group = @consumer_group)
GROUP BY consumer_group ORDER BY consumer_group;

-- name: DeadWithoutLetter :many
-- DeadWithoutLetter finds claims of dead events for which no letter stands.
SELECT e.consumer_group, e.namespace, e.event_id
FROM onceward.processed_events e
WHERE e.outcome = 'd' AND (@consumer_group::text = '' OR e.consumer_group = @consumer_group)
  AND NOT EXISTS (SELECT FROM onceward.consumer_dead_letters l
    WHERE l.claim_id = e.event_id AND l.consumer_group = e.consumer_group AND l.state <> 'redriven')
LIMIT @row_limit::int;

-- name: OpenWithoutClaim :many
-- OpenWithoutClaim finds letters that wait after the handler failed, whose event has no claim that says dead under its id.
SELECT l.consumer_group, l.topic, l.kafka_partition, l.kafka_offset, COALESCE(l.namespace, '')::text AS namespace, COALESCE(l.event_id, l.claim_id)::uuid AS event_id,
  l.claim_id, l.created_at, l.state
FROM onceward.consumer_dead_letters l
WHERE l.reason IN ('handler', 'crash') AND l.state IN ('open', 'requested') AND l.claim_id IS NOT NULL
  AND (@consumer_group::text = '' OR l.consumer_group = @consumer_group)
  AND NOT EXISTS (SELECT FROM onceward.processed_events e
    WHERE e.event_id = l.claim_id AND e.consumer_group = l.consumer_group AND e.outcome = 'd')
LIMIT @row_limit::int;

-- name: DeadAmong :one
-- DeadAmong tells whether one of several ids has a claim of a dead event.
SELECT EXISTS (SELECT FROM onceward.processed_events
  WHERE consumer_group = @consumer_group AND event_id = ANY(CAST(@event_ids::text[] AS uuid[])) AND outcome = 'd')::boolean AS found;

-- name: ClaimedAmong :many
-- ClaimedAmong returns those of several ids that the group has claimed.
SELECT event_id FROM onceward.processed_events WHERE consumer_group = @consumer_group AND event_id = ANY(CAST(@event_ids::text[] AS uuid[]));

-- name: AdoptedClasses :many
-- AdoptedClasses lists the classes whose floor an operator has put below the horizon, for a group that had claimed nothing.
SELECT DISTINCT consumer_group, target FROM onceward.consumer_actions WHERE action = 'windows adopt';
