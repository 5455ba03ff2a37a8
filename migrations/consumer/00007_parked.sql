-- +goose Up
-- Record keys of a group (Retry.OnLetter: park) of which a dead letter is open: what comes behind it becomes a letter in
-- the state parked, and is handled in the order of the offsets once the one before it is settled. A delivery reads its row
-- FOR SHARE, a release locks it; the release that settles the last letter of the key removes it.
CREATE TABLE onceward.parked (
  consumer_group text  NOT NULL,
  topic          text  NOT NULL,
  key_hash       bytea NOT NULL,               -- sha256 of the record key, which may be too long for an index
  record_key     bytea NOT NULL,
  parked_at      timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  PRIMARY KEY (consumer_group, topic, key_hash)
);

ALTER TABLE onceward.consumer_dead_letters DROP CONSTRAINT consumer_dead_letters_state_check;
ALTER TABLE onceward.consumer_dead_letters ADD CONSTRAINT consumer_dead_letters_state_check
  CHECK (state IN ('open', 'requested', 'parked', 'redriven', 'discarded'));
-- The letters of a key that wait, in the order in which they are handled.
CREATE INDEX consumer_dead_letters_of_key ON onceward.consumer_dead_letters (consumer_group, topic, pg_catalog.sha256(record_key), kafka_partition, kafka_offset)
  WHERE state IN ('open', 'requested', 'parked');

-- +goose Down
DROP INDEX onceward.consumer_dead_letters_of_key;
UPDATE onceward.consumer_dead_letters SET state = 'open' WHERE state = 'parked';
ALTER TABLE onceward.consumer_dead_letters DROP CONSTRAINT consumer_dead_letters_state_check;
ALTER TABLE onceward.consumer_dead_letters ADD CONSTRAINT consumer_dead_letters_state_check
  CHECK (state IN ('open', 'requested', 'redriven', 'discarded'));
DROP TABLE onceward.parked;
