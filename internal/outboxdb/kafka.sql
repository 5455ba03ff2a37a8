-- What binds a relay to its Kafka: the cluster, the topics, and what it is configured to be.

-- name: SaveKafka :execrows
-- SaveKafka writes to which cluster a session publishes, and by which routes. A cluster that is not known, null, forgets none. 0 rows: the session was fenced.
UPDATE onceward.relay_state SET kafka_cluster = COALESCE(sqlc.narg(cluster)::text, kafka_cluster), kafka_met = NULL, routes = @routes::text
WHERE slot = @slot AND epoch = @epoch;

-- name: SaveKafkaMet :exec
-- SaveKafkaMet writes which other cluster answered a relay that is bound to one.
UPDATE onceward.relay_state SET kafka_met = @met::text WHERE slot = @slot AND kafka_cluster = @cluster::text AND kafka_met IS DISTINCT FROM @met::text;

-- name: AdoptKafka :one
-- AdoptKafka binds a relay to another cluster, and writes it down. It returns how many events are in doubt, and fails when the relay is not bound as the operator saw.
SELECT onceward.adopt_kafka(@slot::text, @how::text, sqlc.narg(seen)::text, @cluster::text, @reason::text)::bigint AS events;

-- name: CountAccount :one
-- CountAccount counts the events that the account calls published for a relay, those that it owes, and the letters of the former that were replayed.
SELECT pg_catalog.count(*) FILTER (WHERE a.state = 'published') AS published, pg_catalog.count(*) FILTER (WHERE a.state = 'pending') AS pending,
  pg_catalog.count(d.letter_id) FILTER (WHERE d.state = 'replayed' OR d.state = 'retrying' AND d.retry_index IS NOT NULL
    AND d.retry_position < (SELECT r.confirmed_lsn FROM onceward.relay_state r WHERE r.slot = @slot::text)) AS replayed
FROM onceward.outbox o LEFT JOIN LATERAL onceward.account(o.id, o.tx_id, o.seq) a ON a.slot = @slot::text
LEFT JOIN onceward.dead_letters d ON d.slot = @slot::text AND d.letter_id = o.id;

-- name: KafkaTopics :many
-- KafkaTopics lists the topics that relays write to; a slot that is empty means all relays.
SELECT t.slot, t.topic, t.topic_id, t.records, t.seen_at, t.remade, t.remade_at, t.lost_records FROM onceward.kafka_topics t
WHERE @slot::text = '' OR t.slot = @slot ORDER BY t.slot, t.topic;

-- name: RemadeTopics :many
-- RemadeTopics lists the topics that were deleted and made anew, the last one first.
SELECT t.slot, t.topic, t.remade, t.remade_at, t.lost_records FROM onceward.kafka_topics t WHERE t.remade > 0 ORDER BY t.remade_at DESC, t.slot, t.topic LIMIT @row_limit::int;

-- name: SaveKafkaTopics :execrows
-- SaveKafkaTopics writes what is known of topics, all of them or, when the session was fenced, none. lost_records are those of the topic before, where the id is another.
INSERT INTO onceward.kafka_topics AS t (slot, topic, topic_id, records, seen_at, lost_records)
SELECT r.slot, n.topic, n.topic_id, n.records, n.seen_at, n.lost_records
FROM (SELECT s.slot FROM onceward.relay_state s WHERE s.slot = @slot AND s.epoch = @epoch FOR SHARE) r
CROSS JOIN (SELECT pg_catalog.unnest(@topics::text[]) AS topic, pg_catalog.unnest(@topic_ids::text[]) AS topic_id,
  pg_catalog.unnest(@records::bigint[]) AS records, pg_catalog.unnest(@seen_at::timestamptz[]) AS seen_at,
  pg_catalog.unnest(@lost_records::bigint[]) AS lost_records) n
ON CONFLICT (slot, topic) DO UPDATE SET
  remade = t.remade + (t.topic_id <> excluded.topic_id)::int,
  remade_at = CASE WHEN t.topic_id <> excluded.topic_id THEN excluded.seen_at ELSE t.remade_at END,
  lost_records = CASE WHEN t.topic_id <> excluded.topic_id THEN GREATEST(t.records, excluded.lost_records) ELSE t.lost_records END,
  topic_id = excluded.topic_id, records = excluded.records, seen_at = excluded.seen_at;
