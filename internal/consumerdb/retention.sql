-- Retention: floors, gates, horizon and what expires row by row.

-- name: Windows :many
-- Windows reads the classes of all groups. settled_us: for how long, in microseconds, the floor has stood as it is.
SELECT consumer_group, class, (EXTRACT(epoch FROM time_window) * 1000000)::bigint AS window_us, floor, keyed, retired_at, raised_at,
  (EXTRACT(epoch FROM pg_catalog.clock_timestamp() - raised_at) * 1000000)::bigint AS settled_us
FROM onceward.dedup_windows ORDER BY consumer_group, class;

-- name: SlowestMarks :many
-- SlowestMarks reads of every group the topic partition that holds its stream time back: one that has finished nothing
-- yet, else the one with the earliest time.
SELECT DISTINCT ON (consumer_group) consumer_group, topic, kafka_partition, finished_time, updated_at
FROM onceward.progress
ORDER BY consumer_group, finished_time NULLS FIRST, topic, kafka_partition;

-- name: UnregisteredGroups :many
-- UnregisteredGroups lists groups that make progress and have no window.
SELECT DISTINCT p.consumer_group FROM onceward.progress p
WHERE NOT EXISTS (SELECT FROM onceward.dedup_windows w WHERE w.consumer_group = p.consumer_group)
ORDER BY p.consumer_group;

-- name: RaiseFloor :execrows
-- RaiseFloor raises the floor of a class; it never lowers it.
UPDATE onceward.dedup_windows SET floor = @floor, raised_at = pg_catalog.clock_timestamp()
WHERE consumer_group = @consumer_group AND class = @class AND floor < @floor;

-- name: RaiseHorizon :exec
-- RaiseHorizon says that claims before the instant may be gone; it never takes it back.
INSERT INTO onceward.dedup_horizon AS h (dropped_before) VALUES (@dropped_before)
ON CONFLICT (one) DO UPDATE SET dropped_before = GREATEST(h.dropped_before, EXCLUDED.dropped_before);

-- name: PendingFences :one
-- PendingFences counts effects that are not settled, of events in a range of ids.
SELECT pg_catalog.count(*) FROM onceward.fences WHERE status = 'PENDING' AND event_id >= @lower AND event_id < @upper;

-- name: WaitingLetters :one
-- WaitingLetters counts dead letters that nobody has settled, of events in a range of ids.
SELECT pg_catalog.count(*) FROM onceward.consumer_dead_letters
WHERE state IN ('open', 'requested') AND event_id >= @lower AND event_id < @upper;

-- name: DeleteAttempts :execrows
-- DeleteAttempts removes counters of failed tries that have expired. A row that a delivery has locked is left for later.
WITH expired AS (
  SELECT a.event_id, a.consumer_group FROM onceward.attempts a WHERE a.expires_at <= @at
  ORDER BY a.expires_at LIMIT @row_limit::int FOR UPDATE SKIP LOCKED
)
DELETE FROM onceward.attempts a USING expired x WHERE (a.event_id, a.consumer_group) = (x.event_id, x.consumer_group);

-- name: DeleteFences :execrows
-- DeleteFences removes finished fences of a group that have expired and whose events lie below all its floors, so that no
-- delivery of them is claimed again without being judged.
WITH expired AS (
  SELECT f.event_id, f.consumer_group, f.name FROM onceward.fences f
  WHERE f.status = 'COMPLETE' AND f.expires_at <= @at AND f.consumer_group = @consumer_group AND f.event_id < @below
  ORDER BY f.expires_at LIMIT @row_limit::int FOR UPDATE SKIP LOCKED
)
DELETE FROM onceward.fences f USING expired x WHERE (f.event_id, f.consumer_group, f.name) = (x.event_id, x.consumer_group, x.name);

-- name: DeleteLetters :execrows
-- DeleteLetters removes letters that were settled and have expired. One stays as long as the claim that says its event is dead.
WITH expired AS (
  SELECT l.consumer_group, l.topic, l.kafka_partition, l.kafka_offset FROM onceward.consumer_dead_letters l
  WHERE l.state IN ('redriven', 'discarded') AND l.expires_at <= @at
    AND NOT EXISTS (SELECT FROM onceward.processed_events e
      WHERE e.event_id = l.event_id AND e.consumer_group = l.consumer_group AND e.outcome = 'd')
  ORDER BY l.expires_at LIMIT @row_limit::int FOR UPDATE SKIP LOCKED
)
DELETE FROM onceward.consumer_dead_letters l USING expired x
WHERE (l.consumer_group, l.topic, l.kafka_partition, l.kafka_offset) = (x.consumer_group, x.topic, x.kafka_partition, x.kafka_offset);

-- name: OldestExpiries :one
-- OldestExpiries reads, for each table whose rows expire, when the first of those that are there does; a time far ahead: none.
SELECT COALESCE((SELECT pg_catalog.min(a.expires_at) FROM onceward.attempts a), 'epoch'::timestamptz + interval '200 years')::timestamptz AS attempts,
  COALESCE((SELECT pg_catalog.min(f.expires_at) FROM onceward.fences f WHERE f.status = 'COMPLETE'), 'epoch'::timestamptz + interval '200 years')::timestamptz AS fences,
  COALESCE((SELECT pg_catalog.min(l.expires_at) FROM onceward.consumer_dead_letters l WHERE l.state IN ('redriven', 'discarded')),
    'epoch'::timestamptz + interval '200 years')::timestamptz AS letters;
