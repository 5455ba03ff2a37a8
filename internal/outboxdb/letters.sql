-- The relay's own statements on dead letters. Names of an aggregate are compared through the hash that the index has, and then as they are.

-- name: LockEpoch :one
-- LockEpoch locks the relay's row for the rest of the transaction. No row: the session was fenced.
SELECT epoch FROM onceward.relay_state WHERE slot = @slot AND epoch = @epoch FOR UPDATE;

-- name: PollWords :one
-- PollWords reads the operator's words that are state, and the gaps that are to be repaired. No row: the session was fenced.
SELECT s.paused, s.paused_routes, s.skip, ARRAY(SELECT g.gap_id FROM onceward.gaps g WHERE g.slot = s.slot AND g.state = 'repairing')::uuid[] AS repairs
FROM onceward.relay_state s WHERE s.slot = @slot AND s.epoch = @epoch;

-- name: InsertLetter :batchone
-- InsertLetter writes one letter. No row: there is one for this event already.
INSERT INTO onceward.dead_letters (slot, letter_id, namespace, aggregate_type, aggregate_id, event_type, payload, content_type, headers, traceparent,
  created_at, tx_id, seq, position, error_class, error, state, control_id, decided_by, decided_why, holds, replay_of, replay_mode, replay_group, topic)
VALUES (@slot, @letter_id, @namespace, @aggregate_type, @aggregate_id, @event_type, @payload, @content_type, @headers, @traceparent,
  @created_at, @tx_id, @seq, @position, @error_class, @error, @state, @control_id, @decided_by, @decided_why, @holds, @replay_of, @replay_mode, @replay_group, @topic)
ON CONFLICT DO NOTHING
RETURNING letter_id;

-- name: CountLetters :one
-- CountLetters adds to the writes of letters ever made, and forgets a word that was obeyed.
UPDATE onceward.relay_state SET dead_letters = dead_letters + @added::bigint, skip = pg_catalog.array_remove(skip, sqlc.narg(skipped)::uuid)
WHERE slot = @slot RETURNING dead_letters;

-- name: SkipStands :one
-- SkipStands reads whether the operator's word stands. The relay's row is locked: from then on it is obeyed, or was taken back.
SELECT (@id::uuid = ANY(skip))::boolean AS stands FROM onceward.relay_state WHERE slot = @slot;

-- name: WhoSkipped :one
-- WhoSkipped finds who asked for a skip, and why: the tool writes a control beside the word.
SELECT control_id, requested_by, reason FROM onceward.controls WHERE letter_id = @letter_id AND action = 'discard' ORDER BY seq DESC LIMIT 1;

-- name: SettleLetters :execrows
-- SettleLetters ends the retries whose control the checkpoint has passed.
UPDATE onceward.dead_letters SET state = 'replayed', last_at = pg_catalog.clock_timestamp()
WHERE slot = @slot AND state = 'retrying' AND retry_index IS NOT NULL AND retry_position < @checkpoint;

-- name: ReopenLetters :execrows
-- ReopenLetters takes back the retries whose control will be read again. The letters stay marked with it.
UPDATE onceward.dead_letters SET state = 'open' WHERE slot = @slot AND state = 'retrying' AND retry_index IS NOT NULL;

-- name: TakeBackLetters :execrows
-- TakeBackLetters opens every letter again whose retry was under way: its control is not read again, or finds nothing to do. One that waits acts once more on those that stay marked with it.
UPDATE onceward.dead_letters d SET state = 'open', retry_position = NULL, retry_index = CASE WHEN EXISTS (
    SELECT FROM onceward.waiting w JOIN onceward.lanes l ON l.id = w.lane WHERE l.slot = d.slot AND w.id = d.control_id) THEN d.retry_index END
WHERE d.slot = @slot AND d.state IN ('open', 'retrying') AND d.retry_index IS NOT NULL;

-- name: ParkedSet :many
-- ParkedSet lists the parked aggregates, each with its oldest letter that holds it.
SELECT a.namespace, a.aggregate_type, a.aggregate_id, a.position::text AS position, COALESCE(f.seq, 0)::bigint AS seq
FROM (SELECT w.namespace, w.aggregate_type, w.aggregate_id, pg_catalog.min(w.position)::pg_lsn AS position FROM onceward.dead_letters w
  WHERE w.slot = @slot AND w.state = 'open' AND w.holds GROUP BY 1, 2, 3) a
CROSS JOIN LATERAL (SELECT pg_catalog.min(d.seq)::bigint AS seq FROM onceward.dead_letters d
  WHERE d.slot = @slot AND d.state = 'open' AND d.holds AND d.position = a.position
    AND pg_catalog.hashtextextended(d.aggregate_id, pg_catalog.hashtextextended(d.aggregate_type, pg_catalog.hashtextextended(d.namespace, 0::bigint)))
      = pg_catalog.hashtextextended(a.aggregate_id, pg_catalog.hashtextextended(a.aggregate_type, pg_catalog.hashtextextended(a.namespace, 0::bigint)))
    AND d.namespace = a.namespace AND d.aggregate_type = a.aggregate_type AND d.aggregate_id = a.aggregate_id) f;

-- name: OldestHolding :one
-- OldestHolding returns the oldest letter that holds an aggregate. No row: it is not parked.
SELECT d.position::text AS position, d.seq FROM onceward.dead_letters d
WHERE d.slot = @slot AND d.state = 'open' AND d.holds
  AND pg_catalog.hashtextextended(d.aggregate_id, pg_catalog.hashtextextended(d.aggregate_type, pg_catalog.hashtextextended(d.namespace, 0::bigint)))
    = pg_catalog.hashtextextended(@aggregate_id::text, pg_catalog.hashtextextended(@aggregate_type::text, pg_catalog.hashtextextended(@namespace::text, 0::bigint)))
  AND d.namespace = @namespace AND d.aggregate_type = @aggregate_type AND d.aggregate_id = @aggregate_id
ORDER BY d.position, d.seq LIMIT 1;

-- name: LastBefore :one
-- LastBefore returns the position of the newest waiting letter that holds an aggregate whose event is older, by seq, than the given one; 0/0 without any.
SELECT COALESCE(pg_catalog.max(d.position), '0/0')::text AS position FROM onceward.dead_letters d
WHERE d.slot = @slot AND d.state = 'open' AND d.holds AND d.seq < @seq
  AND pg_catalog.hashtextextended(d.aggregate_id, pg_catalog.hashtextextended(d.aggregate_type, pg_catalog.hashtextextended(d.namespace, 0::bigint)))
    = pg_catalog.hashtextextended(@aggregate_id::text, pg_catalog.hashtextextended(@aggregate_type::text, pg_catalog.hashtextextended(@namespace::text, 0::bigint)))
  AND d.namespace = @namespace AND d.aggregate_type = @aggregate_type AND d.aggregate_id = @aggregate_id;

-- name: NewestLetter :one
-- NewestLetter returns the position of the newest letter, 0/0 without any.
SELECT COALESCE(pg_catalog.max(position), '0/0')::text AS position FROM onceward.dead_letters WHERE slot = @slot;

-- name: LettersFrom :many
-- LettersFrom lists letters at a position and after it.
SELECT d.letter_id, d.position::text AS position FROM onceward.dead_letters d
WHERE d.slot = @slot AND d.position >= @from_position
ORDER BY d.position, d.letter_id LIMIT @row_limit::int;

-- name: HasLetter :one
-- HasLetter looks for one letter.
SELECT EXISTS (SELECT FROM onceward.dead_letters WHERE slot = @slot AND letter_id = @letter_id)::boolean AS found;

-- name: RecordControl :execrows
-- RecordControl records that a control acts. 0 rows: it has acted before.
INSERT INTO onceward.control_results (slot, control_id, position, action, letters, note) VALUES (@slot, @control_id, @position, @action, 0, '')
ON CONFLICT DO NOTHING;

-- name: RecordEffect :exec
-- RecordEffect adds what a control did, in the transaction of RecordControl.
UPDATE onceward.control_results SET letters = @letters, note = @note WHERE slot = @slot AND control_id = @control_id;

-- name: ReleaseAggregate :execrows
-- ReleaseAggregate releases all letters of an aggregate that committed before the control. Where that waited, every event that has a letter stood before it in its lane, wherever they were moved; not so replays.
UPDATE onceward.dead_letters d
SET state = 'retrying', retry_position = sqlc.narg(settled_at), retry_index = n.rank - 1, control_id = @control_id, decided_by = @decided_by, decided_why = @decided_why
FROM (SELECT w.letter_id, pg_catalog.row_number() OVER (ORDER BY w.position, w.seq, w.letter_id) AS rank FROM onceward.dead_letters w
  WHERE w.slot = @slot AND w.state = 'open' AND (w.position < @at OR @waited::boolean AND w.replay_of IS NULL)
    AND pg_catalog.hashtextextended(w.aggregate_id, pg_catalog.hashtextextended(w.aggregate_type, pg_catalog.hashtextextended(w.namespace, 0::bigint)))
      = pg_catalog.hashtextextended(@aggregate_id::text, pg_catalog.hashtextextended(@aggregate_type::text, pg_catalog.hashtextextended(@namespace::text, 0::bigint)))
    AND w.namespace = @namespace AND w.aggregate_type = @aggregate_type AND w.aggregate_id = @aggregate_id) n
WHERE d.slot = @slot AND d.letter_id = n.letter_id;

-- name: ReleaseLetter :many
-- ReleaseLetter releases one letter, unless an older one holds its aggregate.
UPDATE onceward.dead_letters d
SET state = 'retrying', retry_position = sqlc.narg(settled_at), retry_index = 0, control_id = @control_id, decided_by = @decided_by, decided_why = @decided_why
WHERE d.slot = @slot AND d.letter_id = @letter_id AND d.state = 'open' AND (d.position < @at OR @waited::boolean)
  AND NOT (d.holds AND EXISTS (SELECT FROM onceward.dead_letters o WHERE o.slot = d.slot AND o.state = 'open' AND o.holds
    AND pg_catalog.hashtextextended(o.aggregate_id, pg_catalog.hashtextextended(o.aggregate_type, pg_catalog.hashtextextended(o.namespace, 0::bigint)))
      = pg_catalog.hashtextextended(d.aggregate_id, pg_catalog.hashtextextended(d.aggregate_type, pg_catalog.hashtextextended(d.namespace, 0::bigint)))
    AND o.namespace = d.namespace AND o.aggregate_type = d.aggregate_type AND o.aggregate_id = d.aggregate_id
    AND (o.position, o.seq) < (d.position, d.seq)))
RETURNING namespace, aggregate_type, aggregate_id;

-- name: ReleaseAgain :many
-- ReleaseAgain gives a control that is read again the letters that it had released and that were taken back, except those behind an older letter that holds their aggregate by now. Both are looked up once: inlined, the second would be for each letter.
WITH claimed AS MATERIALIZED (
  SELECT c.letter_id, c.namespace, c.aggregate_type, c.aggregate_id, c.position, c.seq, c.holds FROM onceward.dead_letters c
  WHERE c.slot = @slot AND c.control_id = @control_id AND c.state = 'open' AND c.retry_index IS NOT NULL
), blocker AS MATERIALIZED (
  SELECT o.position, o.seq FROM (SELECT DISTINCT namespace, aggregate_type, aggregate_id FROM claimed) a
  JOIN onceward.dead_letters o ON pg_catalog.hashtextextended(o.aggregate_id, pg_catalog.hashtextextended(o.aggregate_type, pg_catalog.hashtextextended(o.namespace, 0::bigint)))
      = pg_catalog.hashtextextended(a.aggregate_id, pg_catalog.hashtextextended(a.aggregate_type, pg_catalog.hashtextextended(a.namespace, 0::bigint)))
    AND o.namespace = a.namespace AND o.aggregate_type = a.aggregate_type AND o.aggregate_id = a.aggregate_id
  WHERE o.slot = @slot AND o.state = 'open' AND o.holds AND (o.control_id IS DISTINCT FROM @control_id OR o.retry_index IS NULL)
  ORDER BY o.position, o.seq LIMIT 1
)
UPDATE onceward.dead_letters d SET state = 'retrying', retry_position = sqlc.narg(settled_at)
FROM claimed c
WHERE d.slot = @slot AND d.letter_id = c.letter_id
  AND NOT (c.holds AND EXISTS (SELECT FROM blocker b WHERE (b.position, b.seq) < (c.position, c.seq)))
RETURNING d.namespace, d.aggregate_type, d.aggregate_id;

-- name: GiveUpLetters :execrows
-- GiveUpLetters leaves open what a control that is read again could not release.
UPDATE onceward.dead_letters SET retry_position = NULL, retry_index = NULL
WHERE slot = @slot AND control_id = @control_id AND state = 'open' AND retry_index IS NOT NULL;

-- name: ReadRelease :many
-- ReadRelease reads the next letters of a release: the first, and as many more as fit into the bytes and the rows.
SELECT p.letter_id, p.namespace, p.aggregate_type, p.aggregate_id, p.event_type, p.payload, p.content_type, p.headers, p.traceparent, p.created_at, p.tx_id, p.seq,
  p.position::text AS position, p.attempts, p.holds, p.replay_of, p.replay_mode, p.replay_group, p.topic, p.retry_index
FROM (
  SELECT w.*, COALESCE(pg_catalog.sum(z.bytes) OVER (ORDER BY w.retry_index ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
  FROM (SELECT d.* FROM onceward.dead_letters d
    WHERE d.slot = @slot AND d.control_id = @control_id AND d.state = 'retrying' AND d.retry_index >= @from_index::bigint
    ORDER BY d.retry_index LIMIT @row_limit::int) w
  CROSS JOIN LATERAL (SELECT COALESCE(pg_catalog.octet_length(w.payload), 0) + COALESCE(pg_catalog.octet_length(w.headers::text), 0) + 512 AS bytes) z
) p
WHERE p.before < @byte_limit::bigint ORDER BY p.retry_index;

-- name: FailLetter :execrows
-- FailLetter opens a released letter again, because it could not be published.
UPDATE onceward.dead_letters
SET state = 'open', retry_position = NULL, retry_index = NULL, attempts = attempts + 1, last_at = pg_catalog.clock_timestamp(), error_class = @error_class, error = @error
WHERE slot = @slot AND letter_id = @letter_id AND control_id = @control_id AND state = 'retrying';

-- name: FailRest :execrows
-- FailRest opens again what was released behind a letter that failed and must not pass it.
UPDATE onceward.dead_letters SET state = 'open', retry_position = NULL, retry_index = NULL
WHERE slot = @slot AND control_id = @control_id AND state = 'retrying' AND retry_index > @failed_index::bigint AND holds;

-- name: SkipReleased :execrows
-- SkipReleased gives up a letter whose retry is under way.
UPDATE onceward.dead_letters
SET state = 'discarded', retry_position = NULL, retry_index = NULL, decided_by = @decided_by, decided_why = @decided_why,
  last_at = pg_catalog.clock_timestamp()
WHERE slot = @slot AND letter_id = @letter_id AND control_id = @control_id AND state = 'retrying';

-- name: LetterLane :one
-- LetterLane reads what a retry of one letter has to wait behind. No row: there is no such letter.
SELECT namespace, aggregate_type, COALESCE(topic, '')::text AS topic FROM onceward.dead_letters WHERE slot = @slot AND letter_id = @letter_id;

-- name: DiscardAggregate :execrows
-- DiscardAggregate ends the letters that ReleaseAggregate would release, without publishing them.
UPDATE onceward.dead_letters
SET state = 'discarded', retry_position = NULL, retry_index = NULL, control_id = @control_id, decided_by = @decided_by, decided_why = @decided_why,
  last_at = pg_catalog.clock_timestamp()
WHERE slot = @slot AND state = 'open' AND (position < @at OR @waited::boolean AND replay_of IS NULL)
  AND pg_catalog.hashtextextended(aggregate_id, pg_catalog.hashtextextended(aggregate_type, pg_catalog.hashtextextended(namespace, 0::bigint)))
    = pg_catalog.hashtextextended(@aggregate_id::text, pg_catalog.hashtextextended(@aggregate_type::text, pg_catalog.hashtextextended(@namespace::text, 0::bigint)))
  AND namespace = @namespace AND aggregate_type = @aggregate_type AND aggregate_id = @aggregate_id;

-- name: DiscardLetter :many
-- DiscardLetter ends one letter without publishing it.
UPDATE onceward.dead_letters
SET state = 'discarded', retry_position = NULL, retry_index = NULL, control_id = @control_id, decided_by = @decided_by, decided_why = @decided_why,
  last_at = pg_catalog.clock_timestamp()
WHERE slot = @slot AND letter_id = @letter_id AND state = 'open' AND position < @at
RETURNING namespace, aggregate_type, aggregate_id;

-- name: EditLetter :execrows
-- EditLetter replaces what is given, and keeps what the first edit replaced.
UPDATE onceward.dead_letters
SET original_payload = CASE WHEN edited_at IS NULL THEN payload ELSE original_payload END,
  original_headers = CASE WHEN edited_at IS NULL THEN headers ELSE original_headers END,
  payload = CASE WHEN @payload_null::boolean THEN NULL ELSE COALESCE(sqlc.narg(payload)::bytea, payload) END,
  headers = COALESCE(sqlc.narg(headers)::jsonb, headers),
  retry_position = NULL, retry_index = NULL, control_id = @control_id, decided_by = @decided_by, decided_why = @decided_why,
  edited_at = pg_catalog.clock_timestamp(), edited_by = @decided_by, edited_why = @decided_why
WHERE slot = @slot AND letter_id = @letter_id AND state = 'open' AND position < @at;

-- name: WhyIdle :one
-- WhyIdle reads what explains that a control found nothing to do about a letter. No row: there is none.
SELECT d.state, (d.position < @at)::boolean AS below, d.holds FROM onceward.dead_letters d WHERE d.slot = @slot AND d.letter_id = @letter_id;

-- name: AllowIdle :exec
-- AllowIdle lets this transaction stand idle for so many seconds: a statement that is on its way counts as that.
SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', @seconds::bigint || 's', true);
