-- What a collector of metrics asks at a scrape. It may run beside everything else, on a session of the user's.

-- name: LettersWaiting :many
-- LettersWaiting counts the dead letters that nobody has settled, of all groups. The states are those of the index consumer_dead_letters_of_key.
SELECT consumer_group, reason, pg_catalog.count(*) AS letters,
  EXTRACT(epoch FROM pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) pg_catalog.min(created_at))::pg_catalog.float8 AS oldest_seconds
FROM onceward.consumer_dead_letters
WHERE state OPERATOR(pg_catalog.=) ANY('{open,requested,parked}'::pg_catalog.text[])
GROUP BY consumer_group, reason ORDER BY consumer_group, reason;

-- name: EventsOpen :many
-- EventsOpen counts events with effects that nothing has ended, and those of the effects that are left to an operator.
SELECT consumer_group, pg_catalog.count(DISTINCT event_id) AS events, pg_catalog.count(stuck) AS stuck,
  EXTRACT(epoch FROM pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) pg_catalog.min(created_at))::pg_catalog.float8 AS oldest_seconds
FROM onceward.fences
WHERE expires_at IS NULL
GROUP BY consumer_group ORDER BY consumer_group;

-- name: TableSizes :many
-- TableSizes measures the tables that grow, with their indexes; processed_events with its partitions.
SELECT t.name::pg_catalog.text AS name,
  (COALESCE(pg_catalog.pg_total_relation_size(t.id), 0) OPERATOR(pg_catalog.+) COALESCE((SELECT pg_catalog.sum(pg_catalog.pg_total_relation_size(i.inhrelid)) FROM pg_catalog.pg_inherits i
    WHERE i.inhparent OPERATOR(pg_catalog.=) t.id), 0))::bigint AS bytes
FROM (SELECT n.name, pg_catalog.to_regclass('onceward.' OPERATOR(pg_catalog.||) n.name) AS id
  FROM pg_catalog.unnest('{ahead,attempts,consumer_dead_letters,fences,processed_events}'::pg_catalog.text[]) AS n(name)) t
ORDER BY t.name;
