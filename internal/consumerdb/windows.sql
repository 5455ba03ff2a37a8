-- name: LockWindows :exec
-- LockWindows serialises registration and the raising of floors; readers go on.
LOCK TABLE onceward.dedup_windows IN SHARE ROW EXCLUSIVE MODE;

-- name: Horizon :one
-- Horizon reads before which instant claims may be gone; no row: none was dropped.
SELECT dropped_before FROM onceward.dedup_horizon;

-- name: RegisterWindow :exec
-- RegisterWindow makes a class of a group, or brings one that is there back into use, with the window and the buckets that were
-- decided on under the lock. The floor of a class that is there is never lowered; one that was retired did not hold partitions
-- back, so that its floor must not lie below those that are left, and is another registration. What an operator may change is
-- not changed.
INSERT INTO onceward.dedup_windows AS w (consumer_group, class, time_window, floor, late, replay, keyed, bucket)
VALUES (@consumer_group, @class, @time_window, @floor, @late, @replay, @keyed, @bucket)
ON CONFLICT (consumer_group, class) DO UPDATE
SET time_window = EXCLUDED.time_window, retired_at = NULL,
    bucket = COALESCE(w.bucket, EXCLUDED.bucket),
    old_bucket = CASE WHEN w.bucket IS NULL THEN w.time_window ELSE w.old_bucket END,
    old_until = CASE WHEN w.bucket IS NULL THEN pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) (w.time_window OPERATOR(pg_catalog.*) 2) OPERATOR(pg_catalog.+) interval '1 day' ELSE w.old_until END,
    registered_at = CASE WHEN w.retired_at IS NULL THEN w.registered_at ELSE pg_catalog.clock_timestamp() END,
    floor = CASE WHEN w.retired_at IS NULL THEN w.floor ELSE GREATEST(w.floor, sqlc.arg(oldest)::pg_catalog.timestamptz) END,
    raised_at = CASE WHEN w.retired_at IS NULL THEN w.raised_at ELSE pg_catalog.clock_timestamp() END;

-- name: ClassesOfGroup :many
-- ClassesOfGroup reads a group's classes, the time at which this transaction began, and the time; 0: there is no such bucket.
SELECT class, floor, late, replay, keyed, retired_at, old_until,
  (EXTRACT(epoch FROM time_window) OPERATOR(pg_catalog.*) 1000000)::bigint AS window_us,
  COALESCE(EXTRACT(epoch FROM bucket) OPERATOR(pg_catalog.*) 1000000, 0)::bigint AS bucket_us,
  COALESCE(EXTRACT(epoch FROM old_bucket) OPERATOR(pg_catalog.*) 1000000, 0)::bigint AS old_bucket_us,
  pg_catalog.now()::pg_catalog.timestamptz AS tx_time, pg_catalog.clock_timestamp()::pg_catalog.timestamptz AS clock
FROM onceward.dedup_windows WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group;

-- name: Registrations :many
-- Registrations reads when each class that is in use was registered, its window, how many claims the group was made to forget, and
-- which tables these are: those of another database, or of a dump that was restored, have other oids.
SELECT w.class, w.registered_at, (EXTRACT(epoch FROM w.time_window) OPERATOR(pg_catalog.*) 1000000)::bigint AS window_us,
  ((SELECT d.oid::pg_catalog.text FROM pg_catalog.pg_database d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
    OPERATOR(pg_catalog.||) '/' OPERATOR(pg_catalog.||) ('onceward.processed_events'::pg_catalog.regclass::pg_catalog.oid)::pg_catalog.text)::pg_catalog.text AS tables,
  (SELECT pg_catalog.count(*) FROM onceward.consumer_actions a
  WHERE a.action OPERATOR(pg_catalog.=) 'processed forget' AND a.consumer_group OPERATOR(pg_catalog.=) @consumer_group) AS forgotten
FROM onceward.dedup_windows w WHERE w.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND w.retired_at IS NULL;

-- name: AttachedDays :many
-- AttachedDays lists the partitions of processed_events that take claims, by name.
SELECT c.relname::pg_catalog.text AS name
FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) i.inhrelid
WHERE i.inhparent OPERATOR(pg_catalog.=) 'onceward.processed_events'::pg_catalog.regclass AND NOT i.inhdetachpending;

-- name: HighMark :one
-- HighMark reads the first offset of a topic partition that the group has read, the last one that it has finished, and of which topic id that is said: of the
-- one that is asked for, or else of an unknown one; where only one of the two has passed the offset, of that. Without an id, of the topic
-- that is read now, or was read last. Zero is no id.
SELECT low_offset, high_offset, topic_id FROM onceward.progress
WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND topic OPERATOR(pg_catalog.=) @topic AND kafka_partition OPERATOR(pg_catalog.=) @kafka_partition
  AND (topic_id OPERATOR(pg_catalog.=) @topic_id OR '00000000-0000-0000-0000-000000000000'::pg_catalog.uuid OPERATOR(pg_catalog.=) ANY(ARRAY[topic_id, @topic_id]))
ORDER BY high_offset OPERATOR(pg_catalog.>=) @kafka_offset AND @topic_id OPERATOR(pg_catalog.<>) '00000000-0000-0000-0000-000000000000'::pg_catalog.uuid DESC,
  topic_id OPERATOR(pg_catalog.=) @topic_id DESC, retired_at IS NOT NULL, updated_at DESC LIMIT 1;

-- name: WasUnreadable :one
-- WasUnreadable tells whether an offset lies in a range of this topic id, or where one is unknown, that nobody could read and that was passed
-- over: it was finished, and not applied. 0: a program of an earlier release says in the error's text only how far the range goes; where that
-- does not either, all behind it may be of it. What is behind a ~ is no part of the topic's name.
SELECT EXISTS (SELECT FROM onceward.consumer_dead_letters
  WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND pg_catalog.split_part(topic, '~', 1) OPERATOR(pg_catalog.=) @topic::pg_catalog.text AND kafka_partition OPERATOR(pg_catalog.=) @kafka_partition
    AND (topic_id OPERATOR(pg_catalog.=) @topic_id OR '00000000-0000-0000-0000-000000000000'::pg_catalog.uuid OPERATOR(pg_catalog.=) ANY(ARRAY[topic_id, @topic_id]))
    AND reason OPERATOR(pg_catalog.=) 'unreadable' AND kafka_offset OPERATOR(pg_catalog.<=) @kafka_offset
    AND COALESCE(CASE WHEN unreadable_until OPERATOR(pg_catalog.<>) 0 THEN unreadable_until ELSE CAST(pg_catalog.substring(error, 'until ([0-9]{1,18}) of') AS bigint) END OPERATOR(pg_catalog.>) @kafka_offset, true))::boolean AS unreadable;

-- name: DatabaseTime :one
-- DatabaseTime is the database's clock.
SELECT pg_catalog.clock_timestamp()::pg_catalog.timestamptz AS at;

-- name: RecordRedeliveries :exec
-- RecordRedeliveries adds to the histogram of how late duplicates come. The rows are written in their order, because two
-- that write in opposite orders deadlock.
INSERT INTO onceward.redeliveries AS r (consumer_group, event_type, age_log2, seen, oldest)
SELECT @consumer_group, t.event_type, t.age_log2, t.seen, t.oldest
FROM (SELECT pg_catalog.unnest(@event_types::pg_catalog.text[]) AS event_type, pg_catalog.unnest(@ages_log2::smallint[]) AS age_log2,
  pg_catalog.unnest(@seen::bigint[]) AS seen, pg_catalog.unnest(@oldest::interval[]) AS oldest) t
ORDER BY t.event_type, t.age_log2
ON CONFLICT (consumer_group, event_type, age_log2) DO UPDATE
SET seen = r.seen OPERATOR(pg_catalog.+) EXCLUDED.seen, oldest = GREATEST(r.oldest, EXCLUDED.oldest), last_at = pg_catalog.clock_timestamp();
