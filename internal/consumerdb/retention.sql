-- Retention: floors, gates, horizon and what expires row by row. It runs on a connection of the caller, outside a transaction.

-- name: Windows :many
-- Windows reads the classes of all groups. settled_us: for how long, in microseconds, the floor has stood as it is;
-- followed_us: for how long it has gone with the group, since the class was registered or an operator raised a floor of the group.
SELECT consumer_group, class, (EXTRACT(epoch FROM time_window) OPERATOR(pg_catalog.*) 1000000)::bigint AS window_us, floor, keyed, retired_at, raised_at, old_until,
  COALESCE(EXTRACT(epoch FROM bucket) OPERATOR(pg_catalog.*) 1000000, 0)::bigint AS bucket_us,
  COALESCE(EXTRACT(epoch FROM old_bucket) OPERATOR(pg_catalog.*) 1000000, 0)::bigint AS old_bucket_us,
  (EXTRACT(epoch FROM pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) raised_at) OPERATOR(pg_catalog.*) 1000000)::bigint AS settled_us,
  (EXTRACT(epoch FROM pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) GREATEST(registered_at, (SELECT pg_catalog.max(a.at) FROM onceward.consumer_actions a
    WHERE a.action OPERATOR(pg_catalog.=) 'windows raise' AND a.consumer_group OPERATOR(pg_catalog.=) w.consumer_group))) OPERATOR(pg_catalog.*) 1000000)::bigint AS followed_us
FROM onceward.dedup_windows w ORDER BY consumer_group, class;

-- name: SlowestMarks :many
-- SlowestMarks reads of every group the topic partition that holds its stream time back: one that has finished nothing
-- yet, else the one with the earliest time. What is received from no topic has no backlog that could be waiting: in a group that
-- reads topics as well it counts no more when nothing has come for the longest window, and for a day. What its senders may still
-- repeat is older than every window then.
SELECT DISTINCT ON (p.consumer_group) p.consumer_group, p.topic, p.kafka_partition, p.finished_time, p.updated_at
FROM onceward.progress p
WHERE p.retired_at IS NULL AND NOT (p.topic OPERATOR(pg_catalog.=) ''
  AND p.updated_at OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) GREATEST(interval '1 day', (SELECT pg_catalog.max(w.time_window)
    FROM onceward.dedup_windows w WHERE w.consumer_group OPERATOR(pg_catalog.=) p.consumer_group AND w.retired_at IS NULL)))
  AND EXISTS (SELECT FROM onceward.progress o WHERE o.consumer_group OPERATOR(pg_catalog.=) p.consumer_group AND o.topic OPERATOR(pg_catalog.<>) '' AND o.retired_at IS NULL))
ORDER BY p.consumer_group, p.finished_time NULLS FIRST, p.topic, p.kafka_partition;

-- name: UnregisteredGroups :many
-- UnregisteredGroups lists groups that make progress and have no window.
SELECT DISTINCT p.consumer_group FROM onceward.progress p
WHERE p.retired_at IS NULL AND NOT EXISTS (SELECT FROM onceward.dedup_windows w WHERE w.consumer_group OPERATOR(pg_catalog.=) p.consumer_group)
ORDER BY p.consumer_group;

-- name: RaiseFloor :execrows
-- RaiseFloor raises the floor of a class; it never lowers it.
UPDATE onceward.dedup_windows SET floor = @floor, raised_at = pg_catalog.clock_timestamp()
WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND class OPERATOR(pg_catalog.=) @class AND floor OPERATOR(pg_catalog.<) @floor;

-- name: RaiseHorizon :exec
-- RaiseHorizon says that claims before the instant may be gone; it never takes it back.
INSERT INTO onceward.dedup_horizon AS h (dropped_before) VALUES (@dropped_before)
ON CONFLICT (one) DO UPDATE SET dropped_before = GREATEST(h.dropped_before, EXCLUDED.dropped_before);

-- name: OpenEvents :one
-- OpenEvents counts events with effects that are not ended, in a range of ids.
SELECT pg_catalog.count(DISTINCT (event_id, consumer_group)) FROM onceward.fences WHERE expires_at IS NULL AND event_id OPERATOR(pg_catalog.>=) @lower AND event_id OPERATOR(pg_catalog.<) @upper;

-- name: DeleteAttempts :execrows
-- DeleteAttempts removes counters of failed tries that have expired. A row that a delivery has locked is left for later.
WITH expired AS (
  SELECT a.event_id, a.consumer_group FROM onceward.attempts a WHERE a.expires_at OPERATOR(pg_catalog.<=) @at
  ORDER BY a.expires_at LIMIT @row_limit::int FOR UPDATE SKIP LOCKED
)
DELETE FROM onceward.attempts a USING expired x WHERE (a.event_id, a.consumer_group) OPERATOR(pg_catalog.=) (x.event_id, x.consumer_group);

-- name: DeleteFences :execrows
-- DeleteFences removes the effects of ended events of a group that have expired and whose events lie below all its floors,
-- so that no delivery of them is claimed again without being judged. The effects of an event go together, and none while a
-- letter of the event waits: its redrive must find them.
WITH expired AS (
  SELECT f.event_id, f.consumer_group, f.name FROM onceward.fences f
  WHERE f.expires_at OPERATOR(pg_catalog.<=) @at AND f.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND f.event_id OPERATOR(pg_catalog.<) @below
    AND NOT EXISTS (SELECT FROM onceward.fences o WHERE o.event_id OPERATOR(pg_catalog.=) f.event_id AND o.consumer_group OPERATOR(pg_catalog.=) f.consumer_group AND o.expires_at IS NULL)
    AND NOT EXISTS (SELECT FROM onceward.consumer_dead_letters l WHERE l.event_id OPERATOR(pg_catalog.=) f.event_id AND l.consumer_group OPERATOR(pg_catalog.=) f.consumer_group
      AND l.state OPERATOR(pg_catalog.=) ANY('{open,requested,parked}'::pg_catalog.text[]))
  ORDER BY f.expires_at LIMIT @row_limit::int FOR UPDATE SKIP LOCKED
)
DELETE FROM onceward.fences f USING expired x WHERE (f.event_id, f.consumer_group, f.name) OPERATOR(pg_catalog.=) (x.event_id, x.consumer_group, x.name);

-- name: DeleteLetters :execrows
-- DeleteLetters removes letters that were settled and have expired. One stays as long as the claim that says its event is dead,
-- and as another letter of its event waits, to whose redrive it says what became of the event. One that was parked and discarded
-- has no claim, and stays until its event lies below all floors of its group: a copy above them would be claimed anew.
WITH expired AS (
  SELECT l.consumer_group, l.topic, l.kafka_partition, l.kafka_offset FROM onceward.consumer_dead_letters l
  WHERE l.state OPERATOR(pg_catalog.=) ANY('{redriven,discarded}'::pg_catalog.text[]) AND l.expires_at OPERATOR(pg_catalog.<=) @at
    AND NOT EXISTS (SELECT FROM onceward.processed_events e
      WHERE e.event_id OPERATOR(pg_catalog.=) l.claim_id AND e.consumer_group OPERATOR(pg_catalog.=) l.consumer_group AND e.outcome OPERATOR(pg_catalog.=) 'd')
    AND NOT EXISTS (SELECT FROM onceward.consumer_dead_letters w
      WHERE w.claim_id OPERATOR(pg_catalog.=) l.claim_id AND w.consumer_group OPERATOR(pg_catalog.=) l.consumer_group
        AND w.state OPERATOR(pg_catalog.=) ANY('{open,requested,parked}'::pg_catalog.text[]) AND w.reason OPERATOR(pg_catalog.<>) 'mismatch')
    AND NOT (l.reason OPERATOR(pg_catalog.=) 'parked' AND l.state OPERATOR(pg_catalog.=) 'discarded' AND EXISTS (
      SELECT FROM (SELECT pg_catalog.unnest(@consumer_groups::pg_catalog.text[]) AS consumer_group, pg_catalog.unnest(@floors::pg_catalog.uuid[]) AS below) f
      WHERE f.consumer_group OPERATOR(pg_catalog.=) l.consumer_group AND f.below OPERATOR(pg_catalog.<=) l.claim_id))
  ORDER BY l.expires_at LIMIT @row_limit::int FOR UPDATE SKIP LOCKED
)
DELETE FROM onceward.consumer_dead_letters l USING expired x
WHERE (l.consumer_group, l.topic, l.kafka_partition, l.kafka_offset) OPERATOR(pg_catalog.=) (x.consumer_group, x.topic, x.kafka_partition, x.kafka_offset);

-- name: OldestExpiries :one
-- OldestExpiries reads, for each table whose rows expire, when the first of those that are there does; a time far ahead: none.
SELECT COALESCE((SELECT pg_catalog.min(a.expires_at) FROM onceward.attempts a), 'epoch'::pg_catalog.timestamptz OPERATOR(pg_catalog.+) interval '200 years')::pg_catalog.timestamptz AS attempts,
  COALESCE((SELECT pg_catalog.min(f.expires_at) FROM onceward.fences f), 'epoch'::pg_catalog.timestamptz OPERATOR(pg_catalog.+) interval '200 years')::pg_catalog.timestamptz AS fences,
  COALESCE((SELECT pg_catalog.min(l.expires_at) FROM onceward.consumer_dead_letters l WHERE l.state OPERATOR(pg_catalog.=) ANY('{redriven,discarded}'::pg_catalog.text[])),
    'epoch'::pg_catalog.timestamptz OPERATOR(pg_catalog.+) interval '200 years')::pg_catalog.timestamptz AS letters;
