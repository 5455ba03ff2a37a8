-- Lists, JSON and fingerprints travel as text: pgx can give those to a server in each of its exec modes.

-- name: ClaimEvent :execrows
-- ClaimEvent is ClaimEvents for one id: a statement that is not planned for lists costs a fifth of a message less.
INSERT INTO onceward.processed_events (event_id, consumer_group, event_type, namespace, fingerprint, outcome)
VALUES (CAST(@event_id::pg_catalog.text AS pg_catalog.uuid), @consumer_group, @event_type, @namespace, pg_catalog.decode(@fingerprint::pg_catalog.text, 'hex'), 'p')
ON CONFLICT DO NOTHING
RETURNING pg_catalog.set_config('lock_timeout', CASE WHEN pg_catalog.current_setting('onceward.lock_timeout', true) OPERATOR(pg_catalog.<>) '' THEN pg_catalog.current_setting('onceward.lock_timeout') END, true) OPERATOR(pg_catalog.||) pg_catalog.set_config('onceward.lock_timeout', '', true);

-- name: ClaimEvents :one
-- ClaimEvents claims several events at once and returns the ids of those that are new, with commas between. The ids are
-- inserted in their order, because two that claim in opposite orders deadlock. It comes behind the statement that bounds the transaction.
-- lock_timeout is the session's again when all are new, because what the handler waits for is its own matter.
-- xact is the transaction, for TakeBackClaims; empty when none is new.
WITH claimed AS (
INSERT INTO onceward.processed_events (event_id, consumer_group, event_type, namespace, fingerprint, outcome)
SELECT t.event_id, @consumer_group, t.event_type, t.namespace, t.fingerprint, 'p'
FROM (SELECT CAST(pg_catalog.unnest(@event_ids::pg_catalog.text[]) AS pg_catalog.uuid) AS event_id, pg_catalog.unnest(@event_types::pg_catalog.text[]) AS event_type,
  pg_catalog.unnest(@namespaces::pg_catalog.text[]) AS namespace, pg_catalog.decode(pg_catalog.unnest(@fingerprints::pg_catalog.text[]), 'hex') AS fingerprint) t
ORDER BY t.event_id
ON CONFLICT DO NOTHING
RETURNING event_id
), ids AS (
SELECT COALESCE(pg_catalog.string_agg(event_id::pg_catalog.text, ','), '')::pg_catalog.text AS event_ids, pg_catalog.count(*) AS new FROM claimed
)
SELECT i.event_ids, COALESCE(CASE WHEN i.new OPERATOR(pg_catalog.=) pg_catalog.cardinality(@event_ids::pg_catalog.text[]) THEN
  pg_catalog.set_config('lock_timeout', CASE WHEN pg_catalog.current_setting('onceward.lock_timeout', true) OPERATOR(pg_catalog.<>) '' THEN pg_catalog.current_setting('onceward.lock_timeout') END, true) OPERATOR(pg_catalog.||) pg_catalog.set_config('onceward.lock_timeout', '', true) END, '')::pg_catalog.text AS lock_timeout,
  COALESCE(pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.text, '')::pg_catalog.text AS xact
FROM ids i;

-- name: RestoreLockTimeout :exec
-- RestoreLockTimeout gives lock_timeout back to the session, before a handler runs.
SELECT pg_catalog.set_config('lock_timeout', s.lock_timeout, true) OPERATOR(pg_catalog.||) pg_catalog.set_config('onceward.lock_timeout', '', true)
FROM (SELECT pg_catalog.current_setting('onceward.lock_timeout', true) AS lock_timeout) s WHERE s.lock_timeout OPERATOR(pg_catalog.<>) '';

-- name: FindClaims :many
-- FindClaims reads what the group stored about events that it claimed before.
SELECT event_id, fingerprint, outcome::pg_catalog.text AS outcome, result, processed_at
FROM onceward.processed_events
WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND event_id OPERATOR(pg_catalog.=) ANY(CAST(@event_ids::pg_catalog.text[] AS pg_catalog.uuid[]));

-- name: AppliedAmong :many
-- AppliedAmong reads under which ids the group has applied something.
SELECT event_id FROM onceward.processed_events
WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND event_id OPERATOR(pg_catalog.=) ANY(CAST(@event_ids::pg_catalog.text[] AS pg_catalog.uuid[])) AND outcome OPERATOR(pg_catalog.=) 'p';

-- name: DeleteClaims :exec
-- DeleteClaims takes claims of this transaction back, so that the events can be tried again.
DELETE FROM onceward.processed_events
WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND event_id OPERATOR(pg_catalog.=) ANY(CAST(@event_ids::pg_catalog.text[] AS pg_catalog.uuid[]));

-- name: TakeBackClaims :one
-- TakeBackClaims takes claims of another transaction back, if that was committed, and says whether it was.
WITH other AS (
SELECT COALESCE(pg_catalog.pg_xact_status(CAST(@xact::pg_catalog.text AS pg_catalog.xid8)) OPERATOR(pg_catalog.=) 'committed', false) AS committed
), gone AS (
DELETE FROM onceward.processed_events USING other
WHERE other.committed AND consumer_group OPERATOR(pg_catalog.=) @consumer_group AND event_id OPERATOR(pg_catalog.=) ANY(CAST(@event_ids::pg_catalog.text[] AS pg_catalog.uuid[]))
)
SELECT committed::boolean FROM other;

-- name: ReviveClaims :exec
-- ReviveClaims takes back the claims of an event that was given up, so that its redrive can claim it.
DELETE FROM onceward.processed_events
WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND event_id OPERATOR(pg_catalog.=) ANY(CAST(@event_ids::pg_catalog.text[] AS pg_catalog.uuid[])) AND outcome OPERATOR(pg_catalog.=) 'd';

-- name: MarkDead :execrows
-- MarkDead turns the claims of an event into those of a dead one.
UPDATE onceward.processed_events SET outcome = 'd'
WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND event_id OPERATOR(pg_catalog.=) ANY(CAST(@event_ids::pg_catalog.text[] AS pg_catalog.uuid[]));

-- name: CompleteClaims :execrows
-- CompleteClaims stores the handler's result, JSON, in the claims of an event, for duplicates to return again.
UPDATE onceward.processed_events SET result = CAST(@result::pg_catalog.text AS pg_catalog.jsonb)
WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND event_id OPERATOR(pg_catalog.=) ANY(CAST(@event_ids::pg_catalog.text[] AS pg_catalog.uuid[]));

-- name: ConsumerTables :one
-- ConsumerTables says whether the consumer's side is installed, whether as this release needs it, in which database it looked, and how that writes text.
SELECT (pg_catalog.to_regclass('onceward.processed_events') IS NOT NULL)::boolean AS installed,
  EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid OPERATOR(pg_catalog.=) pg_catalog.to_regclass('onceward.consumer_dead_letters')
    AND a.attname OPERATOR(pg_catalog.=) 'topic_id' AND NOT a.attisdropped)::boolean AS current,
  pg_catalog.current_database()::pg_catalog.text AS database,
  pg_catalog.current_setting('bytea_output')::pg_catalog.text AS bytea_output,
  pg_catalog.current_setting('datestyle')::pg_catalog.text AS date_style,
  pg_catalog.current_setting('client_encoding')::pg_catalog.text AS client_encoding,
  pg_catalog.current_setting('server_encoding')::pg_catalog.text AS server_encoding;
