-- What operators look at and decide, for outboxctl. Every decision is one statement that also writes onceward.consumer_actions.

-- name: ListGroupLetters :many
-- ListGroupLetters lists dead letters of consumer groups, oldest first. Empty filters match all; ids and places are alternatives. Letters
-- of a topic are those, too, that are kept aside behind a ~. Behind is how many of its key are parked behind one that waits itself.
SELECT l.consumer_group, l.topic, l.kafka_partition, l.kafka_offset, l.event_id, l.namespace, l.event_type, l.reason, l.error, l.attempts,
  l.state, l.generation, l.created_at, l.decided_at, l.decided_by, l.decided_why, l.sent_at, l.expires_at,
  CASE WHEN l.state IN ('open', 'requested') AND l.reason <> 'replay' THEN (SELECT pg_catalog.count(*) FROM onceward.consumer_dead_letters b
    WHERE b.consumer_group = l.consumer_group AND b.topic = l.topic AND pg_catalog.sha256(b.record_key) = pg_catalog.sha256(l.record_key) AND b.seq > l.seq
      AND b.state = 'parked') ELSE 0 END::bigint AS behind
FROM onceward.consumer_dead_letters l
WHERE l.state = ANY(@states::text[])
  AND (@consumer_group::text = '' OR l.consumer_group = @consumer_group)
  AND (@reason::text = '' OR l.reason = @reason)
  AND (@namespace::text = '' OR l.namespace = @namespace)
  AND (@event_type::text = '' OR l.event_type = @event_type)
  AND (@topic::text = '' OR @topic IN (l.topic, pg_catalog.split_part(l.topic, '~', 1)))
  AND (sqlc.narg(record_key)::bytea IS NULL OR l.record_key = sqlc.narg(record_key))
  AND (@older_seconds::float8 = 0 OR pg_catalog.date_part('epoch', pg_catalog.now() - l.created_at) >= @older_seconds)
  AND (sqlc.narg(from_time)::timestamptz IS NULL OR l.created_at >= sqlc.narg(from_time))
  AND (sqlc.narg(to_time)::timestamptz IS NULL OR l.created_at < sqlc.narg(to_time))
  AND ((pg_catalog.cardinality(@ids::uuid[]) = 0 AND pg_catalog.cardinality(@places::text[]) = 0)
    OR l.event_id = ANY(@ids::uuid[]) OR (l.topic || '/' || l.kafka_partition || '@' || l.kafka_offset) = ANY(@places::text[]))
ORDER BY l.created_at, l.consumer_group, l.topic, l.kafka_partition, l.kafka_offset LIMIT @row_limit::int;

-- name: ReadGroupLetter :one
-- ReadGroupLetter reads the record of a letter, and of which topic it is by Kafka's id; empty when that is not known.
SELECT record_key, record_value, record_headers, CASE WHEN topic_id <> '00000000-0000-0000-0000-000000000000' THEN topic_id::text ELSE '' END::text AS topic_id
FROM onceward.consumer_dead_letters
WHERE consumer_group = @consumer_group AND topic = @topic AND kafka_partition = @kafka_partition AND kafka_offset = @kafka_offset;

-- name: ActionsOn :many
-- ActionsOn lists what operators did about the targets, oldest first.
SELECT at, by_role, action, consumer_group, target, reason
FROM onceward.consumer_actions
WHERE target = ANY(@targets::text[]) AND (@consumer_group::text = '' OR consumer_group = @consumer_group)
ORDER BY id;

-- name: RequestRedrive :many
-- RequestRedrive asks the members of their groups to handle open letters again, and returns those that it found as they are given.
WITH given AS (
  SELECT pg_catalog.unnest(@consumer_groups::text[]) AS consumer_group, pg_catalog.unnest(@topics::text[]) AS topic, pg_catalog.unnest(@kafka_partitions::int[]) AS kafka_partition,
    pg_catalog.unnest(@kafka_offsets::bigint[]) AS kafka_offset, pg_catalog.unnest(@generations::int[]) AS generation
), found AS (
  SELECT l.consumer_group, l.topic, l.kafka_partition, l.kafka_offset
  FROM onceward.consumer_dead_letters l JOIN given g USING (consumer_group, topic, kafka_partition, kafka_offset, generation)
  WHERE l.state = 'open'
  ORDER BY 1, 2, 3, 4 FOR UPDATE OF l
), asked AS (
  UPDATE onceward.consumer_dead_letters l
  SET state = 'requested', generation = l.generation + 1, decided_at = pg_catalog.clock_timestamp(), decided_by = session_user, decided_why = @reason::text
  FROM found f WHERE (l.consumer_group, l.topic, l.kafka_partition, l.kafka_offset) = (f.consumer_group, f.topic, f.kafka_partition, f.kafka_offset)
  RETURNING l.consumer_group, l.topic, l.kafka_partition, l.kafka_offset
), kept AS (
  INSERT INTO onceward.consumer_actions (action, consumer_group, target, reason)
  SELECT 'dead redrive', a.consumer_group, a.topic || '/' || a.kafka_partition || '@' || a.kafka_offset, @reason::text FROM asked a
)
SELECT consumer_group, topic, kafka_partition, kafka_offset FROM asked;

-- name: DiscardGroupLetters :many
-- DiscardGroupLetters gives letters up that wait, and the effects of their events with them unless another letter of the event waits, and returns
-- those that it found as they are given.
WITH given AS (
  SELECT pg_catalog.unnest(@consumer_groups::text[]) AS consumer_group, pg_catalog.unnest(@topics::text[]) AS topic, pg_catalog.unnest(@kafka_partitions::int[]) AS kafka_partition,
    pg_catalog.unnest(@kafka_offsets::bigint[]) AS kafka_offset, pg_catalog.unnest(@generations::int[]) AS generation
), found AS (
  SELECT l.consumer_group, l.topic, l.kafka_partition, l.kafka_offset
  FROM onceward.consumer_dead_letters l JOIN given g USING (consumer_group, topic, kafka_partition, kafka_offset, generation)
  WHERE l.state IN ('open', 'requested', 'parked')
  ORDER BY 1, 2, 3, 4 FOR UPDATE OF l
), given_up AS (
  UPDATE onceward.consumer_dead_letters l
  SET state = 'discarded', decided_at = pg_catalog.clock_timestamp(), decided_by = session_user, decided_why = @reason::text,
    expires_at = pg_catalog.clock_timestamp() + GREATEST(sqlc.arg(keep)::interval, -- what was parked has no claim: its letter says that it was given up
      (SELECT pg_catalog.max(w.time_window) * 2 + interval '1 day' FROM onceward.dedup_windows w WHERE w.consumer_group = l.consumer_group AND l.reason = 'parked'))
  FROM found f WHERE (l.consumer_group, l.topic, l.kafka_partition, l.kafka_offset) = (f.consumer_group, f.topic, f.kafka_partition, f.kafka_offset)
  RETURNING l.consumer_group, l.topic, l.kafka_partition, l.kafka_offset, l.event_id, l.reason
), ended AS (
  UPDATE onceward.fences e SET expires_at = pg_catalog.clock_timestamp() + sqlc.arg(keep)::interval, event = NULL
  FROM given_up u WHERE e.event_id = u.event_id AND e.consumer_group = u.consumer_group AND u.reason NOT IN ('mismatch', 'unreadable') AND e.expires_at IS NULL
    AND NOT EXISTS (SELECT FROM onceward.consumer_dead_letters l WHERE l.event_id = e.event_id AND l.consumer_group = e.consumer_group
      AND l.reason NOT IN ('mismatch', 'unreadable') AND l.state IN ('open', 'requested', 'parked')
      AND (l.consumer_group, l.topic, l.kafka_partition, l.kafka_offset) NOT IN (SELECT f.consumer_group, f.topic, f.kafka_partition, f.kafka_offset FROM found f))
), kept AS (
  INSERT INTO onceward.consumer_actions (action, consumer_group, target, reason)
  SELECT 'dead discard', a.consumer_group, a.topic || '/' || a.kafka_partition || '@' || a.kafka_offset, @reason::text FROM given_up a
)
SELECT consumer_group, topic, kafka_partition, kafka_offset FROM given_up;

-- name: GroupLettersNow :many
-- GroupLettersNow says how letters stand.
WITH given AS (
  SELECT pg_catalog.unnest(@consumer_groups::text[]) AS consumer_group, pg_catalog.unnest(@topics::text[]) AS topic, pg_catalog.unnest(@kafka_partitions::int[]) AS kafka_partition,
    pg_catalog.unnest(@kafka_offsets::bigint[]) AS kafka_offset
)
SELECT l.consumer_group, l.topic, l.kafka_partition, l.kafka_offset, l.state, l.generation, l.attempts, l.error
FROM onceward.consumer_dead_letters l JOIN given g USING (consumer_group, topic, kafka_partition, kafka_offset);

-- name: ClaimsUnder :many
-- ClaimsUnder reads the claims under several ids, of one group or of all.
SELECT event_id, consumer_group, namespace, event_type, fingerprint, outcome::text AS outcome, result, processed_at
FROM onceward.processed_events
WHERE event_id = ANY(@ids::uuid[]) AND (@consumer_group::text = '' OR consumer_group = @consumer_group)
ORDER BY consumer_group, processed_at, event_id;

-- name: ListWindows :many
-- ListWindows lists the classes of one group or of all.
SELECT consumer_group, class, (pg_catalog.date_part('epoch', time_window) * 1000)::bigint AS window_ms, floor, late, replay, keyed, registered_at, retired_at, old_until,
  COALESCE(pg_catalog.date_part('epoch', bucket) * 1000, 0)::bigint AS bucket_ms, COALESCE(pg_catalog.date_part('epoch', old_bucket) * 1000, 0)::bigint AS old_bucket_ms
FROM onceward.dedup_windows
WHERE (@consumer_group::text = '' OR consumer_group = @consumer_group)
ORDER BY consumer_group, class;

-- name: AttemptsOfEvent :many
-- AttemptsOfEvent reads the failed tries under several ids.
SELECT event_id, consumer_group, attempts, last_error, expires_at
FROM onceward.attempts
WHERE event_id = ANY(@ids::uuid[]) AND (@consumer_group::text = '' OR consumer_group = @consumer_group)
ORDER BY consumer_group, event_id;

-- name: FencesOfEvent :many
-- FencesOfEvent reads the effects of an event, each with the event while one of them keeps it. stale: the provider may have forgotten the key; alone: the
-- effect is the event.
SELECT f.event_id, f.consumer_group, f.name, f.status, f.epoch, f.owner, f.lease_until, f.request_fingerprint, f.provider_key_until, f.result, f.created_at, f.completed_at,
  (SELECT o.event FROM onceward.fences o WHERE o.event_id = f.event_id AND o.consumer_group = f.consumer_group AND o.event IS NOT NULL LIMIT 1) AS event,
  (f.alone IS TRUE)::boolean AS alone, f.stuck, (f.status = 'PENDING' AND f.lease_until >= pg_catalog.clock_timestamp())::boolean AS live,
  (f.status = 'PENDING' AND COALESCE(f.provider_key_until < pg_catalog.clock_timestamp(), false))::boolean AS stale
FROM onceward.fences f
WHERE f.event_id = @event_id AND (@consumer_group::text = '' OR f.consumer_group = @consumer_group) AND (@name::text = '' OR f.name = @name)
ORDER BY f.consumer_group, f.created_at, f.name;

-- name: ForgetClaims :many
-- ForgetClaims removes the claims of one group on one event, with its failed tries, and returns the ids that it found; none
-- while the event is open: an effect of it is under way, or waits for somebody.
WITH forgotten AS (
  DELETE FROM onceward.processed_events p
  WHERE p.consumer_group = @consumer_group AND p.event_id = ANY(@ids::uuid[])
    AND NOT EXISTS (SELECT FROM onceward.fences f WHERE f.event_id = @event_id AND f.consumer_group = @consumer_group AND f.expires_at IS NULL)
  RETURNING p.event_id
), tries AS (
  DELETE FROM onceward.attempts a
  WHERE a.consumer_group = @consumer_group AND a.event_id = ANY(@ids::uuid[]) AND EXISTS (SELECT FROM forgotten)
), offsets AS ( -- beyond the mark: each says that its event was applied
  DELETE FROM onceward.ahead h
  WHERE h.consumer_group = @consumer_group AND h.event_id = ANY(@ids::uuid[]) AND EXISTS (SELECT FROM forgotten)
), letters AS ( -- each of them says the same
  UPDATE onceward.consumer_dead_letters l SET claim_id = NULL
  WHERE l.consumer_group = @consumer_group AND l.claim_id = ANY(@ids::uuid[]) AND l.state = 'redriven' AND EXISTS (SELECT FROM forgotten)
), kept AS (
  INSERT INTO onceward.consumer_actions (action, consumer_group, target, reason)
  SELECT 'processed forget', @consumer_group, @target, @reason WHERE EXISTS (SELECT FROM forgotten)
)
SELECT event_id FROM forgotten;

-- name: ListPendingFences :many
-- ListPendingFences lists PENDING fences, or of these the expired or those that wait for an operator, oldest first. There are few, and an index has them.
SELECT f.event_id, f.consumer_group, f.name, f.status, f.epoch, f.owner, f.lease_until, f.provider_key_until, f.created_at, f.completed_at, f.stuck,
  COALESCE((SELECT o.event ->> 'key' FROM onceward.fences o WHERE o.event_id = f.event_id AND o.consumer_group = f.consumer_group AND o.event IS NOT NULL LIMIT 1),
    (SELECT p.namespace || ':' || p.event_id FROM onceward.processed_events p WHERE p.event_id = f.event_id AND p.consumer_group = f.consumer_group), '')::text AS event_key,
  (f.status = 'PENDING' AND f.lease_until >= pg_catalog.clock_timestamp())::boolean AS live,
  (f.status = 'PENDING' AND COALESCE(f.provider_key_until < pg_catalog.clock_timestamp(), false))::boolean AS stale
FROM onceward.fences f
WHERE f.status = 'PENDING' AND f.expires_at IS NULL AND (@consumer_group::text = '' OR f.consumer_group = @consumer_group)
  AND (NOT @expired::boolean OR f.lease_until < pg_catalog.clock_timestamp())
  AND (NOT @waiting::boolean OR f.provider_key_until < pg_catalog.clock_timestamp() OR f.stuck IS NOT NULL)
ORDER BY f.created_at, f.event_id, f.consumer_group, f.name LIMIT @row_limit::int;

-- name: ListAllFences :many
-- ListAllFences lists fences, oldest first. The key of a COMPLETE one is known as long as its claim is there.
SELECT f.event_id, f.consumer_group, f.name, f.status, f.epoch, f.owner, f.lease_until, f.provider_key_until, f.created_at, f.completed_at, f.stuck,
  COALESCE(f.event ->> 'key', (SELECT p.namespace || ':' || p.event_id FROM onceward.processed_events p
    WHERE p.event_id = f.event_id AND p.consumer_group = f.consumer_group), '')::text AS event_key,
  (f.status = 'PENDING' AND f.lease_until >= pg_catalog.clock_timestamp())::boolean AS live,
  (f.status = 'PENDING' AND COALESCE(f.provider_key_until < pg_catalog.clock_timestamp(), false))::boolean AS stale
FROM onceward.fences f
WHERE @consumer_group::text = '' OR f.consumer_group = @consumer_group
ORDER BY f.created_at, f.event_id, f.consumer_group, f.name LIMIT @row_limit::int;

-- name: FenceMade :one
-- FenceMade completes a PENDING fence whose effect was made. One that was made alone ends its event, which is claimed under the ids; one of several leaves
-- that to the next attempt of the handler, unless that has ended the event without it: then nothing keeps the event. settled is 0 when an attempt holds its lease, or when it is of another epoch by now.
WITH settled AS (
  UPDATE onceward.fences f
  SET status = 'COMPLETE', epoch = f.epoch + 1, lease_until = pg_catalog.clock_timestamp(), result = @result, completed_at = pg_catalog.clock_timestamp(),
    expires_at = CASE WHEN f.alone IS TRUE OR NOT EXISTS (SELECT FROM onceward.fences o WHERE o.event_id = f.event_id AND o.consumer_group = f.consumer_group AND o.event IS NOT NULL) THEN pg_catalog.clock_timestamp() + sqlc.arg(keep)::interval END, event = CASE WHEN f.alone IS NOT TRUE THEN f.event END, stuck = NULL
  WHERE f.event_id = @event_id AND f.consumer_group = @consumer_group AND f.name = @name AND f.epoch = @epoch
    AND f.status = 'PENDING' AND f.lease_until < pg_catalog.clock_timestamp()
  RETURNING f.consumer_group, f.request_fingerprint, f.alone
), claimed AS (
  INSERT INTO onceward.processed_events (event_id, consumer_group, event_type, namespace, fingerprint, outcome, result)
  SELECT i.id, s.consumer_group, @event_type, @namespace, s.request_fingerprint, 'p', @result
  FROM settled s CROSS JOIN (SELECT pg_catalog.unnest(@ids::uuid[]) AS id) i WHERE s.alone IS TRUE ORDER BY i.id
  ON CONFLICT DO NOTHING
  RETURNING event_id
), kept AS (
  INSERT INTO onceward.consumer_actions (action, consumer_group, target, reason)
  SELECT 'fences reconcile --made', s.consumer_group, @target, @reason FROM settled s
)
SELECT (SELECT pg_catalog.count(*) FROM settled) AS settled, (SELECT pg_catalog.count(*) FROM claimed) AS claimed;

-- name: FenceNotMade :execrows
-- FenceNotMade lets the next attempt at a PENDING fence start anew, also where the provider may have forgotten the key. That of an event that has ended
-- without it ends too. While a letter of the event waits nobody but its redrive makes an attempt: until then it is left to an operator. 0 rows: as FenceMade.
WITH settled AS (
  UPDATE onceward.fences f
  SET epoch = f.epoch + 1, lease_until = pg_catalog.clock_timestamp(), provider_key_until = NULL,
    stuck = CASE WHEN EXISTS (SELECT FROM onceward.consumer_dead_letters l WHERE l.event_id = f.event_id AND l.consumer_group = f.consumer_group
      AND l.reason NOT IN ('mismatch', 'unreadable') AND l.state IN ('open', 'requested', 'parked')) THEN COALESCE(f.stuck, 'the event waits for the redrive of its dead letter') END,
    expires_at = CASE WHEN f.alone IS NOT TRUE AND NOT EXISTS (SELECT FROM onceward.fences o WHERE o.event_id = f.event_id AND o.consumer_group = f.consumer_group AND o.event IS NOT NULL)
      THEN pg_catalog.clock_timestamp() + sqlc.arg(keep)::interval END
  WHERE f.event_id = @event_id AND f.consumer_group = @consumer_group AND f.name = @name AND f.epoch = @epoch
    AND f.status = 'PENDING' AND f.lease_until < pg_catalog.clock_timestamp()
  RETURNING f.consumer_group
)
INSERT INTO onceward.consumer_actions (action, consumer_group, target, reason)
SELECT 'fences reconcile --not-made', s.consumer_group, @target, @reason FROM settled s;

-- name: EndLease :execrows
-- EndLease ends the lease of an attempt that is known to be dead. 0 rows: it is over, or another attempt holds it.
WITH ended AS (
  UPDATE onceward.fences f
  SET epoch = f.epoch + 1, lease_until = pg_catalog.clock_timestamp()
  WHERE f.event_id = @event_id AND f.consumer_group = @consumer_group AND f.name = @name AND f.epoch = @epoch
    AND f.status = 'PENDING' AND f.lease_until >= pg_catalog.clock_timestamp()
  RETURNING f.consumer_group
)
INSERT INTO onceward.consumer_actions (action, consumer_group, target, reason)
SELECT 'fences release', e.consumer_group, @target, @reason FROM ended e;

-- name: GroupTraces :one
-- GroupTraces tells whether a group has run on this database: by its marks, its claims, its fences.
SELECT EXISTS (SELECT FROM onceward.progress p WHERE p.consumer_group = @consumer_group) AS marks,
  EXISTS (SELECT FROM onceward.processed_events e WHERE e.consumer_group = @consumer_group) AS claims,
  EXISTS (SELECT FROM onceward.fences f WHERE f.consumer_group = @consumer_group) AS fences;

-- name: AdoptWindow :one
-- AdoptWindow makes a class of a group with a floor, or lowers the floor of the one that is there, which a group that has claimed nothing may do.
WITH adopted AS (
  INSERT INTO onceward.dedup_windows AS w (consumer_group, class, time_window, floor, late, replay, keyed, bucket)
  VALUES (@consumer_group, @class, @time_window, @floor, @late, @replay, @keyed, @bucket)
  ON CONFLICT (consumer_group, class) DO UPDATE
  SET floor = LEAST(w.floor, EXCLUDED.floor), raised_at = pg_catalog.clock_timestamp(), retired_at = NULL,
    registered_at = CASE WHEN w.retired_at IS NULL THEN w.registered_at ELSE pg_catalog.clock_timestamp() END
  RETURNING floor
), kept AS (
  INSERT INTO onceward.consumer_actions (action, consumer_group, target, reason)
  VALUES ('windows adopt', @consumer_group, @class, @reason)
)
SELECT floor FROM adopted;

-- name: RaiseWindow :execrows
-- RaiseWindow raises the floor of a class that is in use, and never lowers it. 0 rows: there is no such class with a lower floor.
WITH raised AS (
  UPDATE onceward.dedup_windows w SET floor = @floor, raised_at = pg_catalog.clock_timestamp()
  WHERE w.consumer_group = @consumer_group AND w.class = @class AND w.retired_at IS NULL AND w.floor < @floor
  RETURNING w.consumer_group, w.class
)
INSERT INTO onceward.consumer_actions (action, consumer_group, target, reason)
SELECT 'windows raise', r.consumer_group, r.class || @did::text, @reason FROM raised r;

-- name: SetWindow :execrows
-- SetWindow changes window, buckets and policies of a class; NULL leaves one as it is. The buckets of before go on to be claimed
-- for as long as a copy may come that meets only them; they are not changed again meanwhile. 0 rows: there is no such class.
WITH changed AS (
  UPDATE onceward.dedup_windows w
  SET time_window = COALESCE(sqlc.narg(new_window)::interval, w.time_window), late = COALESCE(sqlc.narg(new_late)::text, w.late), replay = COALESCE(sqlc.narg(new_replay)::text, w.replay),
    bucket = CASE WHEN w.bucket IS NULL THEN NULL ELSE COALESCE(sqlc.narg(new_bucket)::interval, w.bucket) END,
    old_bucket = CASE WHEN sqlc.narg(new_bucket)::interval <> w.bucket THEN w.bucket ELSE w.old_bucket END,
    old_until = CASE WHEN sqlc.narg(new_bucket)::interval <> w.bucket THEN pg_catalog.clock_timestamp() + w.bucket * 2 + interval '1 day' ELSE w.old_until END
  WHERE w.consumer_group = @consumer_group AND w.class = @class AND w.retired_at IS NULL
    AND NOT COALESCE(sqlc.narg(new_bucket)::interval <> w.bucket AND w.old_until > pg_catalog.clock_timestamp(), false)
  RETURNING w.consumer_group, w.class
)
INSERT INTO onceward.consumer_actions (action, consumer_group, target, reason)
SELECT 'windows set', c.consumer_group, c.class || @did::text, @reason FROM changed c;

-- name: RetireWindows :execrows
-- RetireWindows retires one class of a group, or all; they hold partitions back no longer.
WITH retired AS (
  UPDATE onceward.dedup_windows w SET retired_at = pg_catalog.clock_timestamp()
  WHERE w.consumer_group = @consumer_group AND (@class::text = '' OR w.class = @class) AND w.retired_at IS NULL
  RETURNING w.consumer_group, w.class
)
INSERT INTO onceward.consumer_actions (action, consumer_group, target, reason)
SELECT 'windows retire', r.consumer_group, r.class, @reason FROM retired r;

-- name: MarksOfGroup :many
-- MarksOfGroup reads the marks of one topic of a group, or of all; seconds_ago: when they were saved last.
SELECT topic, kafka_partition, high_offset, finished_time, updated_at, pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - updated_at)::float8 AS seconds_ago
FROM onceward.progress
WHERE consumer_group = @consumer_group AND (NOT @one_topic::boolean OR topic = @topic) AND retired_at IS NULL
ORDER BY topic, kafka_partition;

-- name: RetireTopic :one
-- RetireTopic takes the marks of a topic that a group does not read any more, or of all, out of its stream time, which they hold back. They stay.
-- That a group is retired is written down by RetireWindows, unless it has no class.
WITH forgotten AS (
  UPDATE onceward.progress p SET retired_at = pg_catalog.clock_timestamp()
  WHERE p.consumer_group = @consumer_group AND (@all_topics::boolean OR p.topic = @topic) AND p.updated_at <= @saved_until AND p.retired_at IS NULL
  RETURNING p.kafka_partition
), kept AS (
  INSERT INTO onceward.consumer_actions (action, consumer_group, target, reason)
  SELECT CASE WHEN @all_topics::boolean THEN 'windows retire' ELSE 'windows retire --topic' END, @consumer_group, @topic, @reason
  WHERE EXISTS (SELECT FROM forgotten) AND NOT (@all_topics::boolean AND EXISTS (SELECT FROM onceward.dedup_windows w WHERE w.consumer_group = @consumer_group))
)
SELECT pg_catalog.count(*) FROM forgotten;

-- name: RedeliveriesOfGroups :many
-- RedeliveriesOfGroups reads how late the duplicates of one group, or of all groups, came.
SELECT consumer_group, event_type, age_log2, seen, (EXTRACT(epoch FROM oldest) * 1000)::bigint AS oldest_ms, last_at
FROM onceward.redeliveries
WHERE (@consumer_group::text = '' OR consumer_group = @consumer_group)
ORDER BY consumer_group, event_type, age_log2;

-- name: ReplayLetters :many
-- ReplayLetters counts the copies that came from below the floor and were kept as letters, with the age of the oldest: no histogram has them.
SELECT consumer_group, COALESCE(event_type, '')::text AS event_type, pg_catalog.count(*) AS letters,
  pg_catalog.max(pg_catalog.date_part('epoch', created_at) * 1000 - ('x' || pg_catalog.translate(pg_catalog.left(event_id::text, 13), '-', ''))::bit(48)::bigint)::bigint AS oldest_ms
FROM onceward.consumer_dead_letters
WHERE reason = 'replay' AND event_id IS NOT NULL AND (@consumer_group::text = '' OR consumer_group = @consumer_group)
GROUP BY 1, 2 ORDER BY 1, 2;

-- name: GroupKnown :one
-- GroupKnown says whether a consumer group has ever begun here.
SELECT (EXISTS (SELECT FROM onceward.dedup_windows w WHERE w.consumer_group OPERATOR(pg_catalog.=) @consumer_group::pg_catalog.text)
  OR EXISTS (SELECT FROM onceward.progress p WHERE p.consumer_group OPERATOR(pg_catalog.=) @consumer_group)
  OR EXISTS (SELECT FROM onceward.consumer_dead_letters d WHERE d.consumer_group OPERATOR(pg_catalog.=) @consumer_group))::boolean AS known;
