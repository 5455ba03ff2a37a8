-- name: SaveProgress :execrows
-- SaveProgress widens the marks of several topic partitions; they never narrow. The rows are written in their order,
-- because two that write in opposite orders deadlock. A time of the Unix epoch stands for none. A partition that was read to
-- its end counts the highest time that the group finished anywhere: nothing older can be waiting in it. The mark of an earlier
-- topic of the name stays retired. 0 rows: one of the marks is gone, or lower than at_least, so that effects may be gone as
-- well; an at_least below -1 asks for nothing. open_by, unless it is empty, is who begins with them.
WITH given AS (
  SELECT t.topic, CAST(t.topic_id AS pg_catalog.uuid) AS topic_id, t.kafka_partition, t.low_offset, t.high_offset, t.read_offset, t.at_least, t.finished_time, t.at_end
  FROM (SELECT pg_catalog.unnest(@topics::pg_catalog.text[]) AS topic, pg_catalog.unnest(@topic_ids::pg_catalog.text[]) AS topic_id, pg_catalog.unnest(@kafka_partitions::integer[]) AS kafka_partition,
    pg_catalog.unnest(@low_offsets::bigint[]) AS low_offset, pg_catalog.unnest(@high_offsets::bigint[]) AS high_offset, pg_catalog.unnest(@read_offsets::bigint[]) AS read_offset, pg_catalog.unnest(@at_least::bigint[]) AS at_least,
    pg_catalog.unnest(@finished_times::pg_catalog.timestamptz[]) AS finished_time, pg_catalog.unnest(@at_ends::boolean[]) AS at_end) t
), lost AS (
  SELECT FROM given t WHERE t.at_least OPERATOR(pg_catalog.>=) '-1'::bigint AND NOT EXISTS (SELECT FROM onceward.progress h
    WHERE h.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND h.topic OPERATOR(pg_catalog.=) t.topic AND h.kafka_partition OPERATOR(pg_catalog.=) t.kafka_partition
      AND h.topic_id OPERATOR(pg_catalog.=) t.topic_id AND h.high_offset OPERATOR(pg_catalog.>=) t.at_least)
)
INSERT INTO onceward.progress AS p (consumer_group, topic, topic_id, kafka_partition, low_offset, high_offset, read_offset, open_by, finished_time)
SELECT @consumer_group, t.topic, t.topic_id, t.kafka_partition, t.low_offset, t.high_offset, t.read_offset, CASE WHEN @open_by::pg_catalog.text OPERATOR(pg_catalog.<>) '' THEN @open_by END, GREATEST(CASE WHEN t.finished_time OPERATOR(pg_catalog.<>) 'epoch'::pg_catalog.timestamptz THEN t.finished_time END,
  CASE WHEN t.at_end THEN (SELECT pg_catalog.max(g.finished_time) FROM onceward.progress g WHERE g.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND g.retired_at IS NULL) END)
FROM given t
WHERE NOT EXISTS (SELECT FROM lost)
ORDER BY t.topic, t.kafka_partition
ON CONFLICT (consumer_group, topic, kafka_partition, topic_id) DO UPDATE
SET low_offset    = LEAST(p.low_offset, EXCLUDED.low_offset),
    high_offset   = GREATEST(p.high_offset, EXCLUDED.high_offset),
    read_offset   = EXCLUDED.read_offset,
    open_by       = COALESCE(EXCLUDED.open_by, p.open_by),
    finished_time = GREATEST(p.finished_time, EXCLUDED.finished_time),
    updated_at    = pg_catalog.clock_timestamp(),
    retired_at    = CASE WHEN p.retired_at IS NOT NULL AND EXISTS (SELECT FROM onceward.progress o WHERE o.consumer_group OPERATOR(pg_catalog.=) p.consumer_group AND o.topic OPERATOR(pg_catalog.=) p.topic
      AND o.topic_id OPERATOR(pg_catalog.<>) p.topic_id AND o.retired_at IS NULL
      AND (o.kafka_partition OPERATOR(pg_catalog.=) p.kafka_partition OR '00000000-0000-0000-0000-000000000000'::pg_catalog.uuid OPERATOR(pg_catalog.<>) ALL(ARRAY[o.topic_id, p.topic_id]))) THEN p.retired_at END;

-- name: AdoptProgress :exec
-- AdoptProgress gives marks of a topic whose id was not known the id that it has.
UPDATE onceward.progress p SET topic_id = t.topic_id
FROM (SELECT g.topic, g.kafka_partition, CAST(g.topic_id AS pg_catalog.uuid) AS topic_id
  FROM (SELECT pg_catalog.unnest(@topics::pg_catalog.text[]) AS topic, pg_catalog.unnest(@topic_ids::pg_catalog.text[]) AS topic_id, pg_catalog.unnest(@kafka_partitions::integer[]) AS kafka_partition) g) t
WHERE p.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND p.topic OPERATOR(pg_catalog.=) t.topic AND p.kafka_partition OPERATOR(pg_catalog.=) t.kafka_partition
  AND p.topic_id OPERATOR(pg_catalog.=) '00000000-0000-0000-0000-000000000000'::pg_catalog.uuid AND t.topic_id OPERATOR(pg_catalog.<>) p.topic_id
  AND NOT EXISTS (SELECT FROM onceward.progress o WHERE o.consumer_group OPERATOR(pg_catalog.=) p.consumer_group AND o.topic OPERATOR(pg_catalog.=) p.topic
    AND o.kafka_partition OPERATOR(pg_catalog.=) p.kafka_partition AND o.topic_id OPERATOR(pg_catalog.=) t.topic_id);

-- name: RetireOtherTopics :exec
-- RetireOtherTopics takes marks of other topics of the same names out of the group's stream time, also those of partitions that
-- the topic of now does not have. They stay: the group may read that topic again, on the cluster from which it has moved. A mark
-- of another partition whose topic id is not known may be of the topic of now. The rows are locked in their order, because other
-- members do the same.
WITH begun AS (
  SELECT g.topic, g.kafka_partition, CAST(g.topic_id AS pg_catalog.uuid) AS topic_id
  FROM (SELECT pg_catalog.unnest(@topics::pg_catalog.text[]) AS topic, pg_catalog.unnest(@topic_ids::pg_catalog.text[]) AS topic_id, pg_catalog.unnest(@kafka_partitions::integer[]) AS kafka_partition) g
), other AS (
  SELECT o.topic, o.kafka_partition, o.topic_id FROM onceward.progress o
  WHERE o.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND o.retired_at IS NULL AND EXISTS (SELECT FROM begun t
    WHERE t.topic OPERATOR(pg_catalog.=) o.topic AND t.topic_id OPERATOR(pg_catalog.<>) o.topic_id
      AND (t.kafka_partition OPERATOR(pg_catalog.=) o.kafka_partition OR '00000000-0000-0000-0000-000000000000'::pg_catalog.uuid OPERATOR(pg_catalog.<>) ALL(ARRAY[t.topic_id, o.topic_id])))
  ORDER BY o.topic, o.kafka_partition, o.topic_id FOR UPDATE
)
UPDATE onceward.progress p SET retired_at = pg_catalog.clock_timestamp() FROM other o
WHERE p.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND p.topic OPERATOR(pg_catalog.=) o.topic AND p.kafka_partition OPERATOR(pg_catalog.=) o.kafka_partition
  AND p.topic_id OPERATOR(pg_catalog.=) o.topic_id AND p.retired_at IS NULL;

-- name: ProgressOfGroup :many
-- ProgressOfGroup reads the marks of all topic partitions of a group. Of several topics of one name the one that is read now
-- comes first, or that was read last.
SELECT topic, topic_id, kafka_partition, low_offset, high_offset, read_offset, COALESCE(open_by, '')::pg_catalog.text AS open_by, finished_time, (retired_at IS NOT NULL)::boolean AS retired
FROM onceward.progress WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group ORDER BY topic, kafka_partition, retired_at IS NOT NULL, updated_at DESC;

-- name: EndProgress :exec
-- EndProgress says that a session that had partitions has ended, and did not crash; of a @crashed one it says that what an earlier
-- crash has left in doubt is in doubt still. What another one has taken over stays open.
UPDATE onceward.progress p SET open_by = CASE WHEN t.crashed THEN 'crashed' END
FROM (SELECT g.topic, g.kafka_partition, CAST(g.topic_id AS pg_catalog.uuid) AS topic_id, g.crashed
  FROM (SELECT pg_catalog.unnest(@topics::pg_catalog.text[]) AS topic, pg_catalog.unnest(@topic_ids::pg_catalog.text[]) AS topic_id, pg_catalog.unnest(@kafka_partitions::integer[]) AS kafka_partition,
    pg_catalog.unnest(@crashed::boolean[]) AS crashed) g) t
WHERE p.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND p.topic OPERATOR(pg_catalog.=) t.topic AND p.kafka_partition OPERATOR(pg_catalog.=) t.kafka_partition
  AND p.topic_id OPERATOR(pg_catalog.=) t.topic_id AND p.open_by OPERATOR(pg_catalog.=) @open_by::pg_catalog.text;

-- name: History :one
-- History identifies the history that this database is on: its system identifier, its timeline, and when the server was
-- started. A failover to a standby, a restored backup and a new cluster each change it; so does a data directory that was put
-- back, which keeps the other two, because that takes a start. A start alone changes it too: the marks are read once more.
SELECT ((SELECT c.system_identifier FROM pg_catalog.pg_control_system() c)::pg_catalog.text OPERATOR(pg_catalog.||) '/' OPERATOR(pg_catalog.||)
  pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8) OPERATOR(pg_catalog.||) '/' OPERATOR(pg_catalog.||)
  (EXTRACT(epoch FROM pg_catalog.pg_postmaster_start_time()))::pg_catalog.text)::pg_catalog.text AS history,
  pg_catalog.current_database()::pg_catalog.text AS database;
