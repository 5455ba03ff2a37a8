-- name: SaveProgress :exec
-- SaveProgress widens the marks of several topic partitions; they never narrow. The rows are written in their order,
-- because two that write in opposite orders deadlock. A time of the Unix epoch stands for none. A partition that was read to
-- its end counts the highest time that the group finished anywhere: nothing older can be waiting in it.
INSERT INTO onceward.progress AS p (consumer_group, topic, kafka_partition, low_offset, high_offset, finished_time)
SELECT @consumer_group, t.topic, t.kafka_partition, t.low_offset, t.high_offset, GREATEST(CASE WHEN t.finished_time OPERATOR(pg_catalog.<>) 'epoch'::pg_catalog.timestamptz THEN t.finished_time END,
  CASE WHEN t.at_end THEN (SELECT pg_catalog.max(g.finished_time) FROM onceward.progress g WHERE g.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND g.retired_at IS NULL) END)
FROM (SELECT pg_catalog.unnest(@topics::pg_catalog.text[]) AS topic, pg_catalog.unnest(@kafka_partitions::integer[]) AS kafka_partition, pg_catalog.unnest(@low_offsets::bigint[]) AS low_offset,
  pg_catalog.unnest(@high_offsets::bigint[]) AS high_offset, pg_catalog.unnest(@finished_times::pg_catalog.timestamptz[]) AS finished_time, pg_catalog.unnest(@at_ends::boolean[]) AS at_end) t
ORDER BY t.topic, t.kafka_partition
ON CONFLICT (consumer_group, topic, kafka_partition) DO UPDATE
SET low_offset    = LEAST(p.low_offset, EXCLUDED.low_offset),
    high_offset   = GREATEST(p.high_offset, EXCLUDED.high_offset),
    finished_time = GREATEST(p.finished_time, EXCLUDED.finished_time),
    updated_at    = pg_catalog.clock_timestamp(),
    retired_at    = NULL;

-- name: ProgressOfGroup :many
-- ProgressOfGroup reads the marks of all topic partitions of a group.
SELECT topic, kafka_partition, low_offset, high_offset, finished_time, (retired_at IS NOT NULL)::boolean AS retired
FROM onceward.progress WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group ORDER BY topic, kafka_partition;

-- name: History :one
-- History identifies the history that this database is on: its system identifier, its timeline, and when the server was
-- started. A failover to a standby, a restored backup and a new cluster each change it; so does a data directory that was put
-- back, which keeps the other two, because that takes a start. A start alone changes it too: the marks are read once more.
SELECT ((SELECT c.system_identifier FROM pg_catalog.pg_control_system() c)::pg_catalog.text OPERATOR(pg_catalog.||) '/' OPERATOR(pg_catalog.||)
  pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8) OPERATOR(pg_catalog.||) '/' OPERATOR(pg_catalog.||)
  (EXTRACT(epoch FROM pg_catalog.pg_postmaster_start_time()))::pg_catalog.text)::pg_catalog.text AS history;
