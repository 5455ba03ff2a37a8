-- name: ClaimEvent :execrows
-- ClaimEvent inserts the claim of one group on one event, outcome p (processed) or d (dead). 0 rows: the group has claimed it before.
INSERT INTO onceward.processed_events (event_id, consumer_group, event_type, namespace, fingerprint, outcome, result)
VALUES (@event_id, @consumer_group, @event_type, @namespace, @fingerprint, CAST(sqlc.arg(outcome)::text AS "char"), @result)
ON CONFLICT DO NOTHING;

-- name: FindClaim :one
-- FindClaim reads what the group stored about an event it claimed before.
SELECT fingerprint, outcome::text AS outcome, result, processed_at
FROM onceward.processed_events
WHERE event_id = @event_id AND consumer_group = @consumer_group;

-- name: CompleteClaim :execrows
-- CompleteClaim stores the handler's result in the claim, for duplicates to return again.
UPDATE onceward.processed_events
SET result = @result
WHERE event_id = @event_id AND consumer_group = @consumer_group;

-- name: InsertDeadLetter :execrows
-- InsertDeadLetter keeps a message that could not be applied. 0 rows: it was kept before.
INSERT INTO onceward.consumer_dead_letters (consumer_group, topic, kafka_partition, kafka_offset, event_id, namespace,
  event_type, record_key, record_value, record_headers, reason, error, attempts)
VALUES (@consumer_group, @topic, @kafka_partition, @kafka_offset, @event_id, @namespace,
  @event_type, @record_key, @record_value, @record_headers, @reason, @error, @attempts)
ON CONFLICT DO NOTHING;

-- name: SaveProgress :exec
-- SaveProgress widens the marks of several topic partitions; they never narrow. The rows are written in their order,
-- because two that write in opposite orders deadlock. A time of the Unix epoch stands for none.
INSERT INTO onceward.progress AS p (consumer_group, topic, kafka_partition, low_offset, high_offset, finished_time)
SELECT @consumer_group, t.topic, t.kafka_partition, t.low_offset, t.high_offset, NULLIF(t.finished_time, 'epoch'::timestamptz)
FROM (SELECT unnest(@topics::text[]) AS topic, unnest(@kafka_partitions::integer[]) AS kafka_partition, unnest(@low_offsets::bigint[]) AS low_offset,
  unnest(@high_offsets::bigint[]) AS high_offset, unnest(@finished_times::timestamptz[]) AS finished_time) t
ORDER BY t.topic, t.kafka_partition
ON CONFLICT (consumer_group, topic, kafka_partition) DO UPDATE
SET low_offset    = LEAST(p.low_offset, EXCLUDED.low_offset),
    high_offset   = GREATEST(p.high_offset, EXCLUDED.high_offset),
    finished_time = GREATEST(p.finished_time, EXCLUDED.finished_time),
    updated_at    = clock_timestamp();

-- name: ProgressOfGroup :many
-- ProgressOfGroup reads the marks of all topic partitions of a group.
SELECT topic, kafka_partition, low_offset, high_offset, finished_time
FROM onceward.progress WHERE consumer_group = @consumer_group ORDER BY topic, kafka_partition;

-- name: History :one
-- History identifies the history that this database is on: its system identifier and its timeline. A failover to a
-- standby, a restored backup and a new cluster each change it.
SELECT ((SELECT c.system_identifier FROM pg_catalog.pg_control_system() c)::text || '/' ||
  substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))::text AS history;

-- name: ClaimsOfEvent :many
-- ClaimsOfEvent lists what every group did with an event.
SELECT consumer_group, namespace, outcome::text AS outcome, processed_at
FROM onceward.processed_events
WHERE event_id = @event_id
ORDER BY consumer_group;

-- name: DeadLettersOfEvent :many
-- DeadLettersOfEvent lists the messages of an event that no group could apply.
SELECT consumer_group, topic, kafka_partition, kafka_offset, reason, error, state, created_at
FROM onceward.consumer_dead_letters
WHERE event_id = @event_id
ORDER BY consumer_group, created_at;

-- name: ConsumerTables :one
-- ConsumerTables counts the tables that the consumer's side cannot do without: 2 when it is installed.
SELECT count(*)
FROM pg_catalog.pg_tables
WHERE schemaname = 'onceward' AND tablename IN ('processed_events', 'consumer_dead_letters');

-- name: IsDeadLetter :one
-- IsDeadLetter tells whether the letter at a record's place is that of this record. It is not when the
-- topic was deleted and created again, so that its offsets started anew.
SELECT (record_key IS NOT DISTINCT FROM @record_key AND record_value IS NOT DISTINCT FROM @record_value
  AND record_headers IS NOT DISTINCT FROM @record_headers)::boolean AS same
FROM onceward.consumer_dead_letters
WHERE consumer_group = @consumer_group AND topic = @topic AND kafka_partition = @kafka_partition AND kafka_offset = @kafka_offset;

-- name: ClaimFence :one
-- ClaimFence begins an effect outside the database, or takes over an attempt whose lease has run out. No row: it is
-- complete, another attempt holds its lease, or the request is another one; FindFence says which. stale: the provider
-- may have forgotten the key by now.
INSERT INTO onceward.fences AS f (event_id, consumer_group, name, owner, lease_until, request_fingerprint, provider_key_until)
VALUES (@event_id, @consumer_group, @name, @owner, clock_timestamp() + sqlc.arg(lease)::interval, @request_fingerprint,
  clock_timestamp() + sqlc.narg(provider_key_ttl)::interval)
ON CONFLICT (event_id, consumer_group, name) DO UPDATE
SET epoch = f.epoch + 1, owner = EXCLUDED.owner, lease_until = EXCLUDED.lease_until
WHERE f.status = 'PENDING' AND f.lease_until < clock_timestamp() AND f.request_fingerprint = EXCLUDED.request_fingerprint
RETURNING epoch, COALESCE(provider_key_until < clock_timestamp(), false)::boolean AS stale;

-- name: FindFence :one
-- FindFence reads a fence.
SELECT status, epoch, owner, lease_until, request_fingerprint, result, created_at, completed_at
FROM onceward.fences WHERE event_id = @event_id AND consumer_group = @consumer_group AND name = @name;

-- name: RenewFence :execrows
-- RenewFence is the heartbeat. 0 rows: the lease was lost. One that has run out may be renewed as long as nobody took it.
UPDATE onceward.fences SET lease_until = clock_timestamp() + sqlc.arg(lease)::interval
WHERE event_id = @event_id AND consumer_group = @consumer_group AND name = @name AND epoch = @epoch AND status = 'PENDING';

-- name: ReleaseFence :execrows
-- ReleaseFence ends the lease of an attempt that has failed, so that the next one need not wait for it.
UPDATE onceward.fences SET lease_until = clock_timestamp()
WHERE event_id = @event_id AND consumer_group = @consumer_group AND name = @name AND epoch = @epoch AND status = 'PENDING';

-- name: CompleteFence :execrows
-- CompleteFence ends the effect. 0 rows: another attempt has taken the lease, and this one must leave nothing behind.
UPDATE onceward.fences SET status = 'COMPLETE', result = @result, completed_at = clock_timestamp()
WHERE event_id = @event_id AND consumer_group = @consumer_group AND name = @name AND epoch = @epoch AND status = 'PENDING';

-- name: ClaimEvents :many
-- ClaimEvents claims several events at once and returns those that are new. The ids are inserted in their order,
-- because two that claim in opposite orders deadlock.
INSERT INTO onceward.processed_events (event_id, consumer_group, event_type, namespace, fingerprint, outcome)
SELECT t.event_id, @consumer_group, t.event_type, t.namespace, t.fingerprint, 'p'
FROM (SELECT unnest(@event_ids::uuid[]) AS event_id, unnest(@event_types::text[]) AS event_type,
  unnest(@namespaces::text[]) AS namespace, unnest(@fingerprints::bytea[]) AS fingerprint) t
ORDER BY t.event_id
ON CONFLICT DO NOTHING
RETURNING event_id;

-- name: FindClaims :many
-- FindClaims reads what the group stored about events that it claimed before.
SELECT event_id, fingerprint, outcome::text AS outcome, processed_at
FROM onceward.processed_events
WHERE consumer_group = @consumer_group AND event_id = ANY(@event_ids::uuid[]);

-- name: DeleteClaims :exec
-- DeleteClaims takes claims back whose handlers did not run to their end, so that the events can be tried again.
DELETE FROM onceward.processed_events
WHERE consumer_group = @consumer_group AND event_id = ANY(@event_ids::uuid[]);

-- name: MarkDead :execrows
-- MarkDead turns a claim of this transaction into that of a dead event.
UPDATE onceward.processed_events SET outcome = 'd'
WHERE event_id = @event_id AND consumer_group = @consumer_group;

-- name: CountAttempt :one
-- CountAttempt counts a failure of the handler, outside the transaction that it rolled back.
INSERT INTO onceward.attempts AS a (event_id, consumer_group, last_error, expires_at)
VALUES (@event_id, @consumer_group, @last_error, clock_timestamp() + sqlc.arg(keep)::interval)
ON CONFLICT (event_id, consumer_group) DO UPDATE
SET attempts = a.attempts + 1, last_error = EXCLUDED.last_error, expires_at = EXCLUDED.expires_at
RETURNING attempts;
