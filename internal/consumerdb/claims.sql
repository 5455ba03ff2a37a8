-- name: ClaimEvent :execrows
-- ClaimEvent inserts the claim of one group on one event, outcome p (processed) or d (dead). 0 rows: the group has claimed it before.
INSERT INTO onceward.processed_events (event_id, consumer_group, event_type, namespace, fingerprint, outcome, result)
VALUES (@event_id, @consumer_group, @event_type, @namespace, @fingerprint, CAST(sqlc.arg(outcome)::pg_catalog.text AS pg_catalog."char"), @result)
ON CONFLICT DO NOTHING;

-- name: DeleteClaim :exec
-- DeleteClaim takes one claim of this transaction back.
DELETE FROM onceward.processed_events WHERE event_id OPERATOR(pg_catalog.=) @event_id AND consumer_group OPERATOR(pg_catalog.=) @consumer_group;

-- name: FindClaim :one
-- FindClaim reads what the group stored about an event it claimed before.
SELECT fingerprint, outcome::pg_catalog.text AS outcome, result, processed_at
FROM onceward.processed_events
WHERE event_id OPERATOR(pg_catalog.=) @event_id AND consumer_group OPERATOR(pg_catalog.=) @consumer_group;

-- name: CompleteClaim :execrows
-- CompleteClaim stores the handler's result in the claim, for duplicates to return again.
UPDATE onceward.processed_events
SET result = @result
WHERE event_id OPERATOR(pg_catalog.=) @event_id AND consumer_group OPERATOR(pg_catalog.=) @consumer_group;

-- name: ConsumerTables :one
-- ConsumerTables counts the tables that the consumer's side cannot do without: 3 when it is installed, 2 in its first version.
SELECT pg_catalog.count(*)
FROM pg_catalog.pg_tables
WHERE schemaname OPERATOR(pg_catalog.=) 'onceward' AND tablename OPERATOR(pg_catalog.=) ANY('{processed_events,consumer_dead_letters,dedup_horizon}'::pg_catalog.name[]);

-- name: ClaimEvents :many
-- ClaimEvents claims several events at once and returns those that are new. The ids are inserted in their order,
-- because two that claim in opposite orders deadlock.
INSERT INTO onceward.processed_events (event_id, consumer_group, event_type, namespace, fingerprint, outcome)
SELECT t.event_id, @consumer_group, t.event_type, t.namespace, t.fingerprint, 'p'
FROM (SELECT pg_catalog.unnest(@event_ids::pg_catalog.uuid[]) AS event_id, pg_catalog.unnest(@event_types::pg_catalog.text[]) AS event_type,
  pg_catalog.unnest(@namespaces::pg_catalog.text[]) AS namespace, pg_catalog.unnest(@fingerprints::pg_catalog.bytea[]) AS fingerprint) t
ORDER BY t.event_id
ON CONFLICT DO NOTHING
RETURNING event_id;

-- name: FindClaims :many
-- FindClaims reads what the group stored about events that it claimed before.
SELECT event_id, fingerprint, outcome::pg_catalog.text AS outcome, processed_at
FROM onceward.processed_events
WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND event_id OPERATOR(pg_catalog.=) ANY(@event_ids::pg_catalog.uuid[]);

-- name: DeleteClaims :exec
-- DeleteClaims takes claims back whose handlers did not run to their end, so that the events can be tried again.
DELETE FROM onceward.processed_events
WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND event_id OPERATOR(pg_catalog.=) ANY(@event_ids::pg_catalog.uuid[]);

-- name: MarkDead :execrows
-- MarkDead turns a claim of this transaction into that of a dead event.
UPDATE onceward.processed_events SET outcome = 'd'
WHERE event_id OPERATOR(pg_catalog.=) @event_id AND consumer_group OPERATOR(pg_catalog.=) @consumer_group;
