-- +goose Up
-- Of which topic the record is, by Kafka's id: one that was made anew has other records at the same offsets. Zero: not known, as of
-- letters of an earlier release.
ALTER TABLE onceward.consumer_dead_letters ADD COLUMN topic_id uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000';
-- The ranges that nobody could read, of which a mark proves nothing.
CREATE INDEX consumer_dead_letters_unreadable ON onceward.consumer_dead_letters (consumer_group, kafka_partition, kafka_offset) WHERE reason = 'unreadable';

-- +goose Down
DROP INDEX onceward.consumer_dead_letters_unreadable;
ALTER TABLE onceward.consumer_dead_letters DROP COLUMN topic_id;
