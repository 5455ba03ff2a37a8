-- name: RememberAhead :one
-- RememberAhead remembers that events were applied whose claims a delivery at the same offset may not find again, and counts those that
-- are new to this transaction and that another one has written since this one looked. A row of another event, in whose place the topic was
-- made anew, is none, and of one that is known by its @content no row of another topic is. It waits for another transaction as a claim does; for what comes after it lock_timeout is as before. Where the
-- topic's id is not known, it writes the row of the id that is read now, or was read last, as well, on which one that knows it conflicts.
WITH saved AS MATERIALIZED (
  SELECT pg_catalog.current_setting('lock_timeout') AS lock_timeout
), bound AS MATERIALIZED (
  SELECT s.lock_timeout, pg_catalog.set_config('lock_timeout', @lock_timeout::pg_catalog.text, true) AS own FROM saved s
), asked AS (
  SELECT t.topic, CAST(t.topic_id AS pg_catalog.uuid) AS topic_id, CAST(t.kafka_partition AS integer) AS kafka_partition, CAST(t.kafka_offset AS bigint) AS kafka_offset,
    CAST(t.event_id AS pg_catalog.uuid) AS event_id, CAST(t.fresh AS boolean) AS fresh, CAST(t.content AS boolean) AS content
  FROM (SELECT pg_catalog.unnest(@topics::pg_catalog.text[]) AS topic, pg_catalog.unnest(@topic_ids::pg_catalog.text[]) AS topic_id, pg_catalog.unnest(@kafka_partitions::pg_catalog.text[]) AS kafka_partition,
    pg_catalog.unnest(@kafka_offsets::pg_catalog.text[]) AS kafka_offset, pg_catalog.unnest(@event_ids::pg_catalog.text[]) AS event_id, pg_catalog.unnest(@fresh::pg_catalog.text[]) AS fresh,
    pg_catalog.unnest(@content::pg_catalog.text[]) AS content) t
), given AS (
  SELECT q.topic, q.topic_id, q.kafka_partition, q.kafka_offset, q.event_id, q.fresh, q.content FROM asked q
  UNION ALL
  SELECT q.topic, m.topic_id, q.kafka_partition, q.kafka_offset, q.event_id, q.fresh, q.content
  FROM asked q CROSS JOIN LATERAL (SELECT p.topic_id FROM onceward.progress p
    WHERE p.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND p.topic OPERATOR(pg_catalog.=) q.topic AND p.kafka_partition OPERATOR(pg_catalog.=) q.kafka_partition
      AND p.topic_id OPERATOR(pg_catalog.<>) q.topic_id ORDER BY p.retired_at IS NOT NULL, p.updated_at DESC LIMIT 1) m
  WHERE q.topic_id OPERATOR(pg_catalog.=) '00000000-0000-0000-0000-000000000000'::pg_catalog.uuid
), written AS (
  INSERT INTO onceward.ahead AS a (consumer_group, topic, topic_id, kafka_partition, kafka_offset, event_id)
  SELECT @consumer_group, g.topic, g.topic_id, g.kafka_partition, g.kafka_offset, g.event_id
  FROM bound, given g ORDER BY g.topic, g.kafka_partition, g.kafka_offset, g.topic_id
  ON CONFLICT (consumer_group, topic, kafka_partition, kafka_offset, topic_id) DO UPDATE SET event_id = EXCLUDED.event_id WHERE a.event_id OPERATOR(pg_catalog.<>) EXCLUDED.event_id
  RETURNING a.topic, a.topic_id, a.kafka_partition, a.kafka_offset
), taken AS (
  SELECT pg_catalog.count(*) AS n FROM given g WHERE g.fresh AND (NOT EXISTS (SELECT FROM written w
      WHERE w.topic OPERATOR(pg_catalog.=) g.topic AND w.topic_id OPERATOR(pg_catalog.=) g.topic_id AND w.kafka_partition OPERATOR(pg_catalog.=) g.kafka_partition AND w.kafka_offset OPERATOR(pg_catalog.=) g.kafka_offset)
    OR EXISTS (SELECT FROM onceward.ahead o WHERE o.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND o.topic OPERATOR(pg_catalog.=) g.topic
      AND o.kafka_partition OPERATOR(pg_catalog.=) g.kafka_partition AND o.kafka_offset OPERATOR(pg_catalog.=) g.kafka_offset AND o.event_id OPERATOR(pg_catalog.=) g.event_id
      AND (NOT g.content OR o.topic_id OPERATOR(pg_catalog.=) g.topic_id OR '00000000-0000-0000-0000-000000000000'::pg_catalog.uuid OPERATOR(pg_catalog.=) ANY(ARRAY[o.topic_id, g.topic_id]))))
)
SELECT t.n AS taken, CASE WHEN t.n OPERATOR(pg_catalog.>=) 0 THEN pg_catalog.set_config('lock_timeout', b.lock_timeout, true) END::pg_catalog.text AS lock_timeout FROM taken t, bound b;

-- name: PassedAmong :one
-- PassedAmong counts the marks that have passed the offsets that are asked for: of their topic ids, or where one is unknown.
SELECT pg_catalog.count(*) AS passed
FROM (SELECT pg_catalog.unnest(@topics::pg_catalog.text[]) AS topic, pg_catalog.unnest(@topic_ids::pg_catalog.text[]) AS topic_id, pg_catalog.unnest(@kafka_partitions::pg_catalog.text[]) AS kafka_partition,
  pg_catalog.unnest(@kafka_offsets::pg_catalog.text[]) AS kafka_offset, pg_catalog.unnest(@asked::pg_catalog.text[]) AS asked) t
JOIN onceward.progress p ON p.topic OPERATOR(pg_catalog.=) t.topic AND p.kafka_partition OPERATOR(pg_catalog.=) CAST(t.kafka_partition AS integer)
  AND (p.topic_id OPERATOR(pg_catalog.=) CAST(t.topic_id AS pg_catalog.uuid) OR '00000000-0000-0000-0000-000000000000'::pg_catalog.uuid OPERATOR(pg_catalog.=) ANY(ARRAY[p.topic_id, CAST(t.topic_id AS pg_catalog.uuid)]))
WHERE p.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND p.high_offset OPERATOR(pg_catalog.>=) CAST(t.kafka_offset AS bigint) AND CAST(t.asked AS boolean);

-- name: IsAhead :one
-- IsAhead tells whether the event at an offset beyond the mark was applied before, also at that offset of an earlier topic of the
-- name: it is the event that is asked for, unless that is known by its @content. And how many marks have passed the offset, as PassedAmong counts them.
SELECT EXISTS (SELECT FROM onceward.ahead a
  WHERE a.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND a.topic OPERATOR(pg_catalog.=) @topic AND a.kafka_partition OPERATOR(pg_catalog.=) @kafka_partition
    AND a.kafka_offset OPERATOR(pg_catalog.=) @kafka_offset AND a.event_id OPERATOR(pg_catalog.=) @event_id
    AND (NOT @content::boolean OR a.topic_id OPERATOR(pg_catalog.=) @topic_id OR '00000000-0000-0000-0000-000000000000'::pg_catalog.uuid OPERATOR(pg_catalog.=) ANY(ARRAY[a.topic_id, @topic_id])))::boolean AS ahead,
  (SELECT pg_catalog.count(*) FROM onceward.progress p
  WHERE p.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND p.topic OPERATOR(pg_catalog.=) @topic AND p.kafka_partition OPERATOR(pg_catalog.=) @kafka_partition
    AND (p.topic_id OPERATOR(pg_catalog.=) @topic_id OR '00000000-0000-0000-0000-000000000000'::pg_catalog.uuid OPERATOR(pg_catalog.=) ANY(ARRAY[p.topic_id, @topic_id]))
    AND p.high_offset OPERATOR(pg_catalog.>=) @kafka_offset)::bigint AS passed;

-- name: ForgetAhead :exec
-- ForgetAhead removes what marks have passed: the mark itself says it now. It does not where nobody could read the offsets at first, for
-- as long as the letter of that range, by WasUnreadable's rule, is kept.
DELETE FROM onceward.ahead a
USING (SELECT pg_catalog.unnest(@topics::pg_catalog.text[]) AS topic, pg_catalog.unnest(@kafka_partitions::integer[]) AS kafka_partition, pg_catalog.unnest(@high_offsets::bigint[]) AS high_offset,
  pg_catalog.unnest(@topic_ids::pg_catalog.text[]) AS topic_id) t
WHERE a.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND a.topic OPERATOR(pg_catalog.=) t.topic AND a.kafka_partition OPERATOR(pg_catalog.=) t.kafka_partition
  AND a.kafka_offset OPERATOR(pg_catalog.<=) t.high_offset
  AND (a.topic_id OPERATOR(pg_catalog.=) CAST(t.topic_id AS pg_catalog.uuid) OR '00000000-0000-0000-0000-000000000000'::pg_catalog.uuid OPERATOR(pg_catalog.=) ANY(ARRAY[a.topic_id, CAST(t.topic_id AS pg_catalog.uuid)]))
  AND NOT EXISTS (SELECT FROM onceward.consumer_dead_letters l WHERE l.consumer_group OPERATOR(pg_catalog.=) a.consumer_group
    AND pg_catalog.split_part(l.topic, '~', 1) OPERATOR(pg_catalog.=) a.topic AND l.kafka_partition OPERATOR(pg_catalog.=) a.kafka_partition
    AND (l.topic_id OPERATOR(pg_catalog.=) a.topic_id OR '00000000-0000-0000-0000-000000000000'::pg_catalog.uuid OPERATOR(pg_catalog.=) ANY(ARRAY[l.topic_id, a.topic_id]))
    AND l.reason OPERATOR(pg_catalog.=) 'unreadable' AND l.kafka_offset OPERATOR(pg_catalog.<=) a.kafka_offset
    AND COALESCE(CASE WHEN l.unreadable_until OPERATOR(pg_catalog.<>) 0 THEN l.unreadable_until ELSE CAST(pg_catalog.substring(l.error, 'until ([0-9]{1,18}) of') AS bigint) END OPERATOR(pg_catalog.>) a.kafka_offset, true));
