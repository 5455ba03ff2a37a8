-- name: RememberAhead :exec
-- RememberAhead remembers that events were applied whose claims a delivery at the same offset may not find again.
INSERT INTO onceward.ahead (consumer_group, topic, topic_id, kafka_partition, kafka_offset, event_id)
SELECT @consumer_group, t.topic, CAST(t.topic_id AS pg_catalog.uuid), CAST(t.kafka_partition AS integer), CAST(t.kafka_offset AS bigint), CAST(t.event_id AS pg_catalog.uuid)
FROM (SELECT pg_catalog.unnest(@topics::pg_catalog.text[]) AS topic, pg_catalog.unnest(@topic_ids::pg_catalog.text[]) AS topic_id, pg_catalog.unnest(@kafka_partitions::pg_catalog.text[]) AS kafka_partition,
  pg_catalog.unnest(@kafka_offsets::pg_catalog.text[]) AS kafka_offset, pg_catalog.unnest(@event_ids::pg_catalog.text[]) AS event_id) t
ORDER BY t.topic, CAST(t.kafka_partition AS integer), CAST(t.kafka_offset AS bigint)
ON CONFLICT (consumer_group, topic, kafka_partition, kafka_offset, topic_id) DO UPDATE SET event_id = EXCLUDED.event_id;

-- name: IsAhead :one
-- IsAhead tells whether the event at an offset beyond the mark was applied before, also at that offset of an earlier topic of the
-- name: it is the event that is asked for.
SELECT EXISTS (SELECT FROM onceward.ahead
  WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND topic OPERATOR(pg_catalog.=) @topic AND kafka_partition OPERATOR(pg_catalog.=) @kafka_partition
    AND kafka_offset OPERATOR(pg_catalog.=) @kafka_offset AND event_id OPERATOR(pg_catalog.=) @event_id)::boolean AS ahead;

-- name: ForgetAhead :exec
-- ForgetAhead removes what marks have passed: the mark itself says it now. It does not where nobody could read the offsets at first, for
-- as long as the letter of that range is kept.
DELETE FROM onceward.ahead a
USING (SELECT pg_catalog.unnest(@topics::pg_catalog.text[]) AS topic, pg_catalog.unnest(@kafka_partitions::integer[]) AS kafka_partition, pg_catalog.unnest(@high_offsets::bigint[]) AS high_offset,
  pg_catalog.unnest(@topic_ids::pg_catalog.text[]) AS topic_id) t
WHERE a.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND a.topic OPERATOR(pg_catalog.=) t.topic AND a.kafka_partition OPERATOR(pg_catalog.=) t.kafka_partition
  AND a.kafka_offset OPERATOR(pg_catalog.<=) t.high_offset
  AND (a.topic_id OPERATOR(pg_catalog.=) CAST(t.topic_id AS pg_catalog.uuid) OR '00000000-0000-0000-0000-000000000000'::pg_catalog.uuid OPERATOR(pg_catalog.=) ANY(ARRAY[a.topic_id, CAST(t.topic_id AS pg_catalog.uuid)]))
  AND NOT EXISTS (SELECT FROM onceward.consumer_dead_letters l WHERE l.consumer_group OPERATOR(pg_catalog.=) a.consumer_group
    AND pg_catalog.split_part(l.topic, '~', 1) OPERATOR(pg_catalog.=) a.topic AND l.kafka_partition OPERATOR(pg_catalog.=) a.kafka_partition
    AND (l.topic_id OPERATOR(pg_catalog.=) a.topic_id OR '00000000-0000-0000-0000-000000000000'::pg_catalog.uuid OPERATOR(pg_catalog.=) ANY(ARRAY[l.topic_id, a.topic_id]))
    AND l.reason OPERATOR(pg_catalog.=) 'unreadable' AND l.kafka_offset OPERATOR(pg_catalog.<=) a.kafka_offset AND l.unreadable_until OPERATOR(pg_catalog.>) a.kafka_offset);
