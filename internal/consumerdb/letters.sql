-- name: InsertDeadLetter :execrows
-- InsertDeadLetter keeps a message that could not be applied. 0 rows: it was kept before.
INSERT INTO onceward.consumer_dead_letters (consumer_group, topic, kafka_partition, kafka_offset, event_id, namespace,
  event_type, record_key, record_value, record_headers, reason, error, attempts)
VALUES (@consumer_group, @topic, @kafka_partition, @kafka_offset, @event_id, @namespace,
  @event_type, @record_key, @record_value, CAST(@record_headers::pg_catalog.text AS pg_catalog.jsonb), @reason, @error, @attempts)
ON CONFLICT DO NOTHING;

-- name: IsDeadLetter :one
-- IsDeadLetter tells whether the letter at a record's place is that of this record. It is not when the
-- topic was deleted and created again, so that its offsets started anew.
SELECT (COALESCE(record_key OPERATOR(pg_catalog.=) @record_key, record_key IS NULL AND @record_key IS NULL)
  AND COALESCE(record_value OPERATOR(pg_catalog.=) @record_value, record_value IS NULL AND @record_value IS NULL)
  AND record_headers OPERATOR(pg_catalog.=) CAST(@record_headers::pg_catalog.text AS pg_catalog.jsonb))::boolean AS same
FROM onceward.consumer_dead_letters
WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND topic OPERATOR(pg_catalog.=) @topic AND kafka_partition OPERATOR(pg_catalog.=) @kafka_partition AND kafka_offset OPERATOR(pg_catalog.=) @kafka_offset;

-- name: NextRequestedLetter :one
-- NextRequestedLetter reads the next letter whose redrive was asked for, after a place; letters that others have in hand are passed over,
-- and those of messages that could not be read, which hold nothing to handle.
SELECT topic, kafka_partition, kafka_offset, record_key, record_value, record_headers, reason, generation
FROM onceward.consumer_dead_letters
WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND state OPERATOR(pg_catalog.=) 'requested' AND reason OPERATOR(pg_catalog.<>) 'unreadable'
  AND (topic, kafka_partition, kafka_offset) OPERATOR(pg_catalog.>) (@topic::pg_catalog.text, @kafka_partition::integer, @kafka_offset::bigint)
ORDER BY topic, kafka_partition, kafka_offset
LIMIT 1 FOR UPDATE SKIP LOCKED;

-- name: LockRequestedLetter :one
-- LockRequestedLetter locks a letter whose redrive was asked for, as it was read. No row: another one has it in hand, or
-- has decided about it.
SELECT generation
FROM onceward.consumer_dead_letters
WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND topic OPERATOR(pg_catalog.=) @topic AND kafka_partition OPERATOR(pg_catalog.=) @kafka_partition AND kafka_offset OPERATOR(pg_catalog.=) @kafka_offset
  AND state OPERATOR(pg_catalog.=) 'requested' AND generation OPERATOR(pg_catalog.=) @generation
FOR UPDATE SKIP LOCKED;

-- name: RedriveLetter :execrows
-- RedriveLetter ends a redrive that succeeded. 0 rows: somebody else has decided about the letter.
UPDATE onceward.consumer_dead_letters
SET state = 'redriven', decided_at = pg_catalog.clock_timestamp(), expires_at = pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) sqlc.arg(keep)::interval
WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND topic OPERATOR(pg_catalog.=) @topic AND kafka_partition OPERATOR(pg_catalog.=) @kafka_partition AND kafka_offset OPERATOR(pg_catalog.=) @kafka_offset
  AND state OPERATOR(pg_catalog.=) 'requested' AND generation OPERATOR(pg_catalog.=) @generation;

-- name: ReopenLetter :execrows
-- ReopenLetter ends a redrive that failed; tried is how often the handler was called. 0 rows: as RedriveLetter.
UPDATE onceward.consumer_dead_letters
SET state = 'open', error = @error, attempts = attempts OPERATOR(pg_catalog.+) sqlc.arg(tried)::integer
WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND topic OPERATOR(pg_catalog.=) @topic AND kafka_partition OPERATOR(pg_catalog.=) @kafka_partition AND kafka_offset OPERATOR(pg_catalog.=) @kafka_offset
  AND state OPERATOR(pg_catalog.=) 'requested' AND generation OPERATOR(pg_catalog.=) @generation;

-- name: LockLettersToSend :one
-- LockLettersToSend makes this transaction the only one that copies letters of the group to Kafka; false: another one is at it.
SELECT pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended('onceward letters of ' OPERATOR(pg_catalog.||) @consumer_group::pg_catalog.text, 0::bigint));

-- name: LettersToSend :many
-- LettersToSend reads the next letters, after a place, that wait for somebody's decision and are not in Kafka yet.
SELECT topic, kafka_partition, kafka_offset, record_key, record_value, record_headers, reason, error, attempts, created_at
FROM onceward.consumer_dead_letters
WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND sent_at IS NULL AND state OPERATOR(pg_catalog.=) ANY('{open,requested}'::pg_catalog.text[])
  AND (topic, kafka_partition, kafka_offset) OPERATOR(pg_catalog.>) (@topic::pg_catalog.text, @kafka_partition::integer, @kafka_offset::bigint)
ORDER BY topic, kafka_partition, kafka_offset
LIMIT @row_limit::integer;

-- name: LettersSent :exec
-- LettersSent remembers which letters Kafka has.
WITH given AS (
  SELECT pg_catalog.unnest(@topics::pg_catalog.text[]) AS topic, pg_catalog.unnest(@kafka_partitions::integer[]) AS kafka_partition, pg_catalog.unnest(@kafka_offsets::bigint[]) AS kafka_offset
)
UPDATE onceward.consumer_dead_letters l SET sent_at = pg_catalog.clock_timestamp()
FROM given g
WHERE l.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND l.topic OPERATOR(pg_catalog.=) g.topic AND l.kafka_partition OPERATOR(pg_catalog.=) g.kafka_partition AND l.kafka_offset OPERATOR(pg_catalog.=) g.kafka_offset;
