-- name: PutDeadLetter :one
-- PutDeadLetter keeps a message that could not be applied, or puts it in the place of a letter that is decided: of the same record
-- that was given up @again, or is parked again, or of another one unless the letter says that its event was applied or given up, or
-- that a range was not read; or in that of the same record that waits and knows no event, because nobody could read it.
-- What has no event, or one that is known by its @content, is the same within one life of its topic only. 0: the one that is there stays. It is written when its transaction
-- began, as its claims by arrival are.
WITH inserted AS (
  INSERT INTO onceward.consumer_dead_letters (consumer_group, topic, topic_id, kafka_partition, kafka_offset, event_id, namespace,
    event_type, record_key, record_value, record_headers, reason, error, attempts, state, unreadable_until, claim_id, fingerprint, created_at)
  VALUES (@consumer_group, @topic, @topic_id, @kafka_partition, @kafka_offset, @event_id, @namespace,
    @event_type, @record_key, @record_value, CAST(@record_headers::pg_catalog.text AS pg_catalog.jsonb), @reason, @error, @attempts, @state, @unreadable_until, @claim_id, @fingerprint, pg_catalog.now())
  ON CONFLICT DO NOTHING
  RETURNING 1
), replaced AS (
  UPDATE onceward.consumer_dead_letters
  SET topic_id = @topic_id, event_id = @event_id, namespace = @namespace, event_type = @event_type, record_key = @record_key, record_value = @record_value,
    record_headers = CAST(@record_headers::pg_catalog.text AS pg_catalog.jsonb), reason = @reason, error = @error, attempts = @attempts, state = @state, unreadable_until = @unreadable_until,
    claim_id = @claim_id, fingerprint = @fingerprint, seq = DEFAULT,
    generation = generation OPERATOR(pg_catalog.+) 1, created_at = pg_catalog.now(), decided_at = NULL, decided_by = NULL, decided_why = NULL, expires_at = NULL, sent_at = NULL
  WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND topic OPERATOR(pg_catalog.=) @topic AND kafka_partition OPERATOR(pg_catalog.=) @kafka_partition AND kafka_offset OPERATOR(pg_catalog.=) @kafka_offset
    AND CASE WHEN COALESCE(record_key OPERATOR(pg_catalog.=) @record_key, record_key IS NULL AND @record_key IS NULL)
        AND COALESCE(record_value OPERATOR(pg_catalog.=) @record_value, record_value IS NULL AND @record_value IS NULL)
        AND record_headers OPERATOR(pg_catalog.=) CAST(@record_headers::pg_catalog.text AS pg_catalog.jsonb) AND unreadable_until OPERATOR(pg_catalog.=) @unreadable_until
        AND (claim_id IS NOT NULL AND NOT @content::boolean OR topic_id OPERATOR(pg_catalog.=) @topic_id OR '00000000-0000-0000-0000-000000000000'::pg_catalog.uuid OPERATOR(pg_catalog.=) ANY(ARRAY[topic_id, @topic_id]))
      THEN @again::boolean AND (claim_id IS NULL OR state OPERATOR(pg_catalog.=) ANY('{redriven,discarded}'::pg_catalog.text[])) OR @state OPERATOR(pg_catalog.=) 'parked' AND state OPERATOR(pg_catalog.=) 'redriven'
      ELSE state OPERATOR(pg_catalog.=) ANY('{redriven,discarded}'::pg_catalog.text[]) AND reason OPERATOR(pg_catalog.<>) 'unreadable' AND (claim_id IS NULL OR state OPERATOR(pg_catalog.=) 'discarded' AND reason OPERATOR(pg_catalog.=) ANY('{mismatch,replay}'::pg_catalog.text[])) END
  RETURNING 1
)
SELECT ((SELECT pg_catalog.count(*) FROM inserted) OPERATOR(pg_catalog.+) (SELECT pg_catalog.count(*) FROM replaced))::bigint AS written;

-- name: PlaceOfLetter :one
-- PlaceOfLetter says under which topic's name a record has its letter, of the first hundred that it may have; empty: none. A letter at its place is
-- another one's when the topic was deleted and created again, so that its offsets started anew: then another record may say the same, unless that
-- is an event that is not known by its @content, of which it is a copy. It is a statement of its own, because PutDeadLetter does not see a letter for whose transaction it had to wait.
SELECT COALESCE((SELECT topic FROM onceward.consumer_dead_letters
  WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND kafka_partition OPERATOR(pg_catalog.=) @kafka_partition AND kafka_offset OPERATOR(pg_catalog.=) @kafka_offset
    AND topic OPERATOR(pg_catalog.=) ANY(ARRAY(SELECT @topic::pg_catalog.text OPERATOR(pg_catalog.||) CASE WHEN n OPERATOR(pg_catalog.>) 1 THEN '~' OPERATOR(pg_catalog.||) n::pg_catalog.text ELSE '' END FROM pg_catalog.generate_series(1, 100) n))
    AND COALESCE(record_key OPERATOR(pg_catalog.=) @record_key, record_key IS NULL AND @record_key IS NULL)
    AND COALESCE(record_value OPERATOR(pg_catalog.=) @record_value, record_value IS NULL AND @record_value IS NULL)
    AND record_headers OPERATOR(pg_catalog.=) CAST(@record_headers::pg_catalog.text AS pg_catalog.jsonb) AND unreadable_until OPERATOR(pg_catalog.=) @unreadable_until
    AND (claim_id IS NOT NULL AND NOT @content::boolean OR topic_id OPERATOR(pg_catalog.=) @topic_id OR '00000000-0000-0000-0000-000000000000'::pg_catalog.uuid OPERATOR(pg_catalog.=) ANY(ARRAY[topic_id, @topic_id]))
  ORDER BY pg_catalog.length(topic), topic LIMIT 1), '')::pg_catalog.text AS topic;

-- name: RangeIsKept :one
-- RangeIsKept tells whether a letter of this life of the topic has all of a range that nobody could read: who sets an offset into the
-- middle of a batch finds the rest of it.
SELECT EXISTS (SELECT FROM onceward.consumer_dead_letters
  WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND pg_catalog.split_part(topic, '~', 1) OPERATOR(pg_catalog.=) @topic::pg_catalog.text AND kafka_partition OPERATOR(pg_catalog.=) @kafka_partition
    AND topic_id OPERATOR(pg_catalog.=) @topic_id AND topic_id OPERATOR(pg_catalog.<>) '00000000-0000-0000-0000-000000000000'::pg_catalog.uuid
    AND reason OPERATOR(pg_catalog.=) 'unreadable' AND kafka_offset OPERATOR(pg_catalog.<=) @kafka_offset AND unreadable_until OPERATOR(pg_catalog.>=) @until)::boolean AS kept;

-- name: NextRequestedLetter :one
-- NextRequestedLetter reads the next letter whose redrive was asked for, after a place; letters that others have in hand are passed over,
-- and those of messages that could not be read, which hold nothing to handle.
SELECT topic, topic_id, kafka_partition, kafka_offset, record_key, record_value, record_headers, reason, generation, state, created_at
FROM onceward.consumer_dead_letters
WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND state OPERATOR(pg_catalog.=) 'requested' AND reason OPERATOR(pg_catalog.<>) 'unreadable'
  AND (topic, kafka_partition, kafka_offset) OPERATOR(pg_catalog.>) (@topic::pg_catalog.text, @kafka_partition::integer, @kafka_offset::bigint)
ORDER BY topic, kafka_partition, kafka_offset
LIMIT 1 FOR UPDATE SKIP LOCKED;

-- name: LockRequestedLetter :one
-- LockRequestedLetter locks a letter that is to be handled again, as it was read. No row: another one has it in hand, or
-- has decided about it.
SELECT generation
FROM onceward.consumer_dead_letters
WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND topic OPERATOR(pg_catalog.=) @topic AND kafka_partition OPERATOR(pg_catalog.=) @kafka_partition AND kafka_offset OPERATOR(pg_catalog.=) @kafka_offset
  AND state OPERATOR(pg_catalog.=) sqlc.arg(was) AND generation OPERATOR(pg_catalog.=) @generation
FOR UPDATE SKIP LOCKED;

-- name: NameLetterEvent :execrows
-- NameLetterEvent writes into the letter of a record that nobody could read which event it holds. 0 rows: as LockRequestedLetter.
WITH mine AS (
  SELECT l.consumer_group, l.topic, l.kafka_partition, l.kafka_offset FROM onceward.consumer_dead_letters l
  WHERE l.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND l.topic OPERATOR(pg_catalog.=) @topic AND l.kafka_partition OPERATOR(pg_catalog.=) @kafka_partition AND l.kafka_offset OPERATOR(pg_catalog.=) @kafka_offset
    AND l.state OPERATOR(pg_catalog.=) sqlc.arg(was) AND l.generation OPERATOR(pg_catalog.=) @generation
  FOR UPDATE SKIP LOCKED
)
UPDATE onceward.consumer_dead_letters l
SET event_id = @event_id, namespace = @namespace, event_type = @event_type, claim_id = @claim_id, fingerprint = @fingerprint
FROM mine m
WHERE (l.consumer_group, l.topic, l.kafka_partition, l.kafka_offset) OPERATOR(pg_catalog.=) (m.consumer_group, m.topic, m.kafka_partition, m.kafka_offset);

-- name: RedriveLetter :execrows
-- RedriveLetter ends a redrive that succeeded. 0 rows: somebody else has decided about the letter.
UPDATE onceward.consumer_dead_letters
SET state = 'redriven', decided_at = pg_catalog.clock_timestamp(), expires_at = pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) sqlc.arg(keep)::interval
WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND topic OPERATOR(pg_catalog.=) @topic AND kafka_partition OPERATOR(pg_catalog.=) @kafka_partition AND kafka_offset OPERATOR(pg_catalog.=) @kafka_offset
  AND state OPERATOR(pg_catalog.=) sqlc.arg(was) AND generation OPERATOR(pg_catalog.=) @generation;

-- name: ReopenLetter :execrows
-- ReopenLetter ends a redrive that failed; tried is how often the handler was called. One that was given up by its handler is
-- one of a crash when the process died in that; one whose key is another event's is a mismatch. 0 rows: as RedriveLetter.
UPDATE onceward.consumer_dead_letters
SET state = 'open', reason = CASE WHEN @mismatch::boolean THEN 'mismatch' WHEN @crashed::boolean AND reason OPERATOR(pg_catalog.=) 'handler' THEN 'crash' ELSE reason END, error = @error, attempts = attempts OPERATOR(pg_catalog.+) sqlc.arg(tried)::integer
WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND topic OPERATOR(pg_catalog.=) @topic AND kafka_partition OPERATOR(pg_catalog.=) @kafka_partition AND kafka_offset OPERATOR(pg_catalog.=) @kafka_offset
  AND state OPERATOR(pg_catalog.=) sqlc.arg(was) AND generation OPERATOR(pg_catalog.=) @generation;

-- name: LockEvent :one
-- LockEvent makes this transaction the only one that handles a letter of an event again; false: another one is at another letter of it,
-- whose claim by arrival may lie in other buckets. Who comes after it sees what it has made of its letter.
SELECT pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended('onceward redrive of ' OPERATOR(pg_catalog.||) @consumer_group::pg_catalog.text OPERATOR(pg_catalog.||) ' ' OPERATOR(pg_catalog.||) @claim_id::pg_catalog.text, 0::bigint));

-- name: LettersOfClaim :many
-- LettersOfClaim reads the letters of an id, which say what its claim did until the day of that was dropped. at is when that was decided,
-- or the letter written. One of a release before schema 8 has no fingerprint, and gives what that is made of.
SELECT state, reason, fingerprint, COALESCE(namespace, '') AS namespace, COALESCE(event_type, '') AS event_type, record_key, (CASE WHEN fingerprint IS NULL THEN record_value END)::pg_catalog.bytea AS record_value,
  COALESCE(decided_at, created_at)::pg_catalog.timestamptz AS at, topic, topic_id, kafka_partition, kafka_offset, created_at
FROM onceward.consumer_dead_letters
WHERE claim_id OPERATOR(pg_catalog.=) @claim_id AND consumer_group OPERATOR(pg_catalog.=) @consumer_group AND reason OPERATOR(pg_catalog.<>) 'mismatch'
ORDER BY seq;

-- name: SettleApplied :exec
-- SettleApplied ends the letters that wait whose events another delivery has applied, as their claims in a range of ids say that are about
-- to go: after that a redrive would apply them again.
UPDATE onceward.consumer_dead_letters l
SET state = 'redriven', generation = l.generation OPERATOR(pg_catalog.+) 1, decided_at = pg_catalog.clock_timestamp(), decided_why = 'another delivery has applied the event',
  expires_at = pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) sqlc.arg(keep)::interval
FROM onceward.processed_events e
WHERE e.event_id OPERATOR(pg_catalog.>=) @lower AND e.event_id OPERATOR(pg_catalog.<) @upper AND e.outcome OPERATOR(pg_catalog.=) 'p'
  AND l.claim_id OPERATOR(pg_catalog.=) e.event_id AND l.consumer_group OPERATOR(pg_catalog.=) e.consumer_group AND COALESCE(l.fingerprint OPERATOR(pg_catalog.=) e.fingerprint, true)
  AND l.claim_id OPERATOR(pg_catalog.>=) @lower AND l.claim_id OPERATOR(pg_catalog.<) @upper
  AND l.state OPERATOR(pg_catalog.=) ANY('{open,requested,parked}'::pg_catalog.text[]) AND l.reason OPERATOR(pg_catalog.<>) 'mismatch';

-- name: LockLettersToSend :one
-- LockLettersToSend makes this transaction the only one that copies letters of the group to Kafka; false: another one is at it.
SELECT pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended('onceward letters of ' OPERATOR(pg_catalog.||) @consumer_group::pg_catalog.text, 0::bigint));

-- name: LettersToSend :many
-- LettersToSend reads the next letters, after a place, that wait for somebody's decision and are not in Kafka yet.
SELECT topic, kafka_partition, kafka_offset, record_key, record_value, record_headers, reason, error, attempts, created_at, generation
FROM onceward.consumer_dead_letters
WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND sent_at IS NULL AND state OPERATOR(pg_catalog.=) ANY('{open,requested}'::pg_catalog.text[])
  AND (topic, kafka_partition, kafka_offset) OPERATOR(pg_catalog.>) (@topic::pg_catalog.text, @kafka_partition::integer, @kafka_offset::bigint)
ORDER BY topic, kafka_partition, kafka_offset
LIMIT @row_limit::integer;

-- name: LettersSent :exec
-- LettersSent remembers which letters Kafka has; not of one in whose place there is another one by now, or that was decided about.
WITH given AS (
  SELECT pg_catalog.unnest(@topics::pg_catalog.text[]) AS topic, pg_catalog.unnest(@kafka_partitions::integer[]) AS kafka_partition, pg_catalog.unnest(@kafka_offsets::bigint[]) AS kafka_offset,
    pg_catalog.unnest(@generations::integer[]) AS generation
)
UPDATE onceward.consumer_dead_letters l SET sent_at = pg_catalog.clock_timestamp()
FROM given g
WHERE l.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND l.topic OPERATOR(pg_catalog.=) g.topic AND l.kafka_partition OPERATOR(pg_catalog.=) g.kafka_partition AND l.kafka_offset OPERATOR(pg_catalog.=) g.kafka_offset
  AND l.generation OPERATOR(pg_catalog.=) g.generation;

-- name: ParkedAmong :many
-- ParkedAmong reads which of several records have a key that is parked, and keeps it so for as long as this transaction takes; and whose
-- event was parked and discarded, which has left no claim.
WITH given AS (
  SELECT CAST(g.n AS integer) AS n, g.topic, CASE WHEN g.claim_id OPERATOR(pg_catalog.<>) '' THEN CAST(g.claim_id AS pg_catalog.uuid) END AS claim_id,
    pg_catalog.decode(g.fingerprint, 'hex') AS fingerprint, pg_catalog.decode(g.key_hash, 'hex') AS key_hash
  FROM (SELECT pg_catalog.unnest(@numbers::pg_catalog.text[]) AS n, pg_catalog.unnest(@topics::pg_catalog.text[]) AS topic, pg_catalog.unnest(@claim_ids::pg_catalog.text[]) AS claim_id,
    pg_catalog.unnest(@fingerprints::pg_catalog.text[]) AS fingerprint, pg_catalog.unnest(@key_hashes::pg_catalog.text[]) AS key_hash) g
), locked AS (
  SELECT p.topic, p.key_hash FROM onceward.parked p
  WHERE p.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND EXISTS (SELECT FROM given g WHERE g.topic OPERATOR(pg_catalog.=) p.topic AND g.key_hash OPERATOR(pg_catalog.=) p.key_hash)
  ORDER BY p.topic, p.key_hash FOR SHARE OF p
)
SELECT g.n::integer AS n, true::boolean AS parked
FROM given g JOIN locked l ON g.topic OPERATOR(pg_catalog.=) l.topic AND g.key_hash OPERATOR(pg_catalog.=) l.key_hash
UNION ALL
SELECT g.n::integer, false::boolean
FROM given g JOIN onceward.consumer_dead_letters d ON d.claim_id OPERATOR(pg_catalog.=) g.claim_id AND COALESCE(d.fingerprint OPERATOR(pg_catalog.=) g.fingerprint, true)
WHERE d.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND d.reason OPERATOR(pg_catalog.=) 'parked' AND d.state OPERATOR(pg_catalog.=) 'discarded';

-- name: ParkKey :one
-- ParkKey parks a record key, and counts those of the group that were parked before.
WITH made AS (
  INSERT INTO onceward.parked (consumer_group, topic, key_hash, record_key)
  VALUES (@consumer_group, @topic, pg_catalog.sha256(@record_key::pg_catalog.bytea), @record_key::pg_catalog.bytea)
  ON CONFLICT DO NOTHING RETURNING 1
)
SELECT (SELECT pg_catalog.count(*) FROM made)::bigint AS made, pg_catalog.count(*) AS keys
FROM onceward.parked p WHERE p.consumer_group OPERATOR(pg_catalog.=) @consumer_group;

-- name: CountParked :one
-- CountParked counts the letters that are parked behind a key, up to a limit.
SELECT pg_catalog.count(*) FROM (
  SELECT FROM onceward.consumer_dead_letters
  WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND topic OPERATOR(pg_catalog.=) @topic
    AND pg_catalog.sha256(record_key) OPERATOR(pg_catalog.=) pg_catalog.sha256(@record_key::pg_catalog.bytea) AND state OPERATOR(pg_catalog.=) 'parked'
  LIMIT @row_limit::int) l;

-- name: LockParked :one
-- LockParked locks the row of a parked key, so that one release works at it, and no delivery. No row: the key is not parked.
SELECT topic FROM onceward.parked
WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND topic OPERATOR(pg_catalog.=) @topic
  AND key_hash OPERATOR(pg_catalog.=) pg_catalog.sha256(@record_key::pg_catalog.bytea)
FOR UPDATE;

-- name: FirstOfKey :one
-- FirstOfKey reads which letter of a key is the next to be handled. Replays, which may have been applied before, do not hold others back.
SELECT kafka_partition, kafka_offset, state
FROM onceward.consumer_dead_letters
WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND topic OPERATOR(pg_catalog.=) @topic
  AND pg_catalog.sha256(record_key) OPERATOR(pg_catalog.=) pg_catalog.sha256(@record_key::pg_catalog.bytea)
  AND state OPERATOR(pg_catalog.=) ANY('{open,requested,parked}'::pg_catalog.text[]) AND reason OPERATOR(pg_catalog.<>) 'replay'
ORDER BY seq LIMIT 1;

-- name: UnparkKey :exec
-- UnparkKey removes the row of a key that this transaction has locked, when no letter of it waits.
DELETE FROM onceward.parked p
WHERE p.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND p.topic OPERATOR(pg_catalog.=) @topic
  AND p.key_hash OPERATOR(pg_catalog.=) pg_catalog.sha256(@record_key::pg_catalog.bytea)
  AND NOT EXISTS (SELECT FROM onceward.consumer_dead_letters l
    WHERE l.consumer_group OPERATOR(pg_catalog.=) p.consumer_group AND l.topic OPERATOR(pg_catalog.=) p.topic AND pg_catalog.sha256(l.record_key) OPERATOR(pg_catalog.=) p.key_hash
      AND l.state OPERATOR(pg_catalog.=) ANY('{open,requested,parked}'::pg_catalog.text[]) AND l.reason OPERATOR(pg_catalog.<>) 'replay');

-- name: NextParkedLetter :one
-- NextParkedLetter reads the next letter, after a place, that is parked and the first of its key: what it was behind is settled.
SELECT l.topic, l.topic_id, l.kafka_partition, l.kafka_offset, l.record_key, l.record_value, l.record_headers, l.reason, l.generation, l.state, l.created_at
FROM onceward.parked p CROSS JOIN LATERAL (
  SELECT w.topic, w.topic_id, w.kafka_partition, w.kafka_offset, w.record_key, w.record_value, w.record_headers, w.reason, w.generation, w.state, w.created_at
  FROM onceward.consumer_dead_letters w
  WHERE w.consumer_group OPERATOR(pg_catalog.=) p.consumer_group AND w.topic OPERATOR(pg_catalog.=) p.topic AND pg_catalog.sha256(w.record_key) OPERATOR(pg_catalog.=) p.key_hash
    AND w.state OPERATOR(pg_catalog.=) ANY('{open,requested,parked}'::pg_catalog.text[]) AND w.reason OPERATOR(pg_catalog.<>) 'replay'
  ORDER BY w.seq LIMIT 1) l
WHERE p.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND l.state OPERATOR(pg_catalog.=) 'parked'
  AND (l.topic, l.kafka_partition, l.kafka_offset) OPERATOR(pg_catalog.>) (@topic::pg_catalog.text, @kafka_partition::integer, @kafka_offset::bigint)
ORDER BY l.topic, l.kafka_partition, l.kafka_offset LIMIT 1;

-- name: EmptyParked :many
-- EmptyParked reads parked keys of which no letter waits: an operator has discarded the last one.
SELECT p.topic, p.record_key FROM onceward.parked p
WHERE p.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND NOT EXISTS (SELECT FROM onceward.consumer_dead_letters l
    WHERE l.consumer_group OPERATOR(pg_catalog.=) p.consumer_group AND l.topic OPERATOR(pg_catalog.=) p.topic AND pg_catalog.sha256(l.record_key) OPERATOR(pg_catalog.=) p.key_hash
      AND l.state OPERATOR(pg_catalog.=) ANY('{open,requested,parked}'::pg_catalog.text[]) AND l.reason OPERATOR(pg_catalog.<>) 'replay');

-- name: StopRelease :execrows
-- StopRelease opens a parked letter that was refused for a reason of its own, about which somebody has to decide.
UPDATE onceward.consumer_dead_letters SET state = 'open'
WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND topic OPERATOR(pg_catalog.=) @topic AND kafka_partition OPERATOR(pg_catalog.=) @kafka_partition
  AND kafka_offset OPERATOR(pg_catalog.=) @kafka_offset AND state OPERATOR(pg_catalog.=) 'parked' AND generation OPERATOR(pg_catalog.=) @generation;
