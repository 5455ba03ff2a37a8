-- name: InsertDeadLetter :execrows
-- InsertDeadLetter keeps a message that could not be applied. 0 rows: it was kept before.
INSERT INTO onceward.consumer_dead_letters (consumer_group, topic, kafka_partition, kafka_offset, event_id, namespace,
  event_type, record_key, record_value, record_headers, reason, error, attempts)
VALUES (@consumer_group, @topic, @kafka_partition, @kafka_offset, @event_id, @namespace,
  @event_type, @record_key, @record_value, @record_headers, @reason, @error, @attempts)
ON CONFLICT DO NOTHING;

-- name: DeadLettersOfEvent :many
-- DeadLettersOfEvent lists the messages of an event that no group could apply.
SELECT consumer_group, topic, kafka_partition, kafka_offset, reason, error, state, created_at
FROM onceward.consumer_dead_letters
WHERE event_id = @event_id
ORDER BY consumer_group, created_at;

-- name: IsDeadLetter :one
-- IsDeadLetter tells whether the letter at a record's place is that of this record. It is not when the
-- topic was deleted and created again, so that its offsets started anew.
SELECT (record_key IS NOT DISTINCT FROM @record_key AND record_value IS NOT DISTINCT FROM @record_value
  AND record_headers IS NOT DISTINCT FROM @record_headers)::boolean AS same
FROM onceward.consumer_dead_letters
WHERE consumer_group = @consumer_group AND topic = @topic AND kafka_partition = @kafka_partition AND kafka_offset = @kafka_offset;
