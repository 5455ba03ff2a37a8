-- As rebuild/outbox.sql, of the consumer's side.
SET LOCAL lock_timeout = '2s';

DROP INDEX IF EXISTS onceward.processed_events_dead;
ALTER TABLE onceward.processed_events
  ALTER COLUMN processed_at SET DEFAULT pg_catalog.clock_timestamp(),
  DROP CONSTRAINT IF EXISTS processed_events_outcome_check,
  ADD CONSTRAINT processed_events_outcome_check CHECK (outcome IN ('p', 'd'));
CREATE INDEX processed_events_dead ON onceward.processed_events (consumer_group, event_id) WHERE outcome = 'd';

DROP INDEX IF EXISTS onceward.fences_pending, onceward.fences_expires, onceward.fences_open;
ALTER TABLE onceward.fences
  ALTER COLUMN created_at SET DEFAULT pg_catalog.clock_timestamp(),
  DROP CONSTRAINT IF EXISTS fences_status_check,
  ADD CONSTRAINT fences_status_check CHECK (status IN ('PENDING', 'COMPLETE'));
CREATE INDEX fences_pending ON onceward.fences (lease_until) WHERE status = 'PENDING';
CREATE INDEX fences_open ON onceward.fences (event_id, consumer_group) WHERE expires_at IS NULL;
CREATE INDEX fences_expires ON onceward.fences (expires_at) WHERE expires_at IS NOT NULL;

ALTER TABLE onceward.progress
  ALTER COLUMN updated_at SET DEFAULT pg_catalog.clock_timestamp();

ALTER TABLE onceward.dedup_windows
  ALTER COLUMN registered_at SET DEFAULT pg_catalog.clock_timestamp(),
  ALTER COLUMN raised_at SET DEFAULT pg_catalog.clock_timestamp(),
  DROP CONSTRAINT IF EXISTS dedup_windows_late_check,
  DROP CONSTRAINT IF EXISTS dedup_windows_replay_check,
  DROP CONSTRAINT IF EXISTS dedup_windows_keyed_check,
  ADD CONSTRAINT dedup_windows_late_check CHECK (late IN ('process', 'dead-letter')),
  ADD CONSTRAINT dedup_windows_replay_check CHECK (replay IN ('dead-letter', 'park', 'process')),
  ADD CONSTRAINT dedup_windows_keyed_check CHECK (keyed IN ('event-time', 'arrival'));

DROP INDEX IF EXISTS onceward.consumer_dead_letters_requested, onceward.consumer_dead_letters_of_key, onceward.consumer_dead_letters_unreadable;
ALTER TABLE onceward.consumer_dead_letters
  ALTER COLUMN created_at SET DEFAULT pg_catalog.clock_timestamp(),
  DROP CONSTRAINT IF EXISTS consumer_dead_letters_state_check,
  ADD CONSTRAINT consumer_dead_letters_state_check CHECK (state IN ('open', 'requested', 'parked', 'redriven', 'discarded'));
CREATE INDEX consumer_dead_letters_requested ON onceward.consumer_dead_letters (consumer_group) WHERE state = 'requested';
CREATE INDEX consumer_dead_letters_of_key ON onceward.consumer_dead_letters (consumer_group, topic, pg_catalog.sha256(record_key), seq)
  WHERE state IN ('open', 'requested', 'parked');
CREATE INDEX consumer_dead_letters_unreadable ON onceward.consumer_dead_letters (consumer_group, kafka_partition, kafka_offset) WHERE reason = 'unreadable';

ALTER TABLE onceward.parked
  ALTER COLUMN parked_at SET DEFAULT pg_catalog.clock_timestamp();

ALTER TABLE onceward.redeliveries
  ALTER COLUMN last_at SET DEFAULT pg_catalog.clock_timestamp();

ALTER TABLE onceward.consumer_actions
  ALTER COLUMN at SET DEFAULT pg_catalog.clock_timestamp();

ALTER TABLE onceward.consumer_migrations
  ALTER COLUMN tstamp SET DEFAULT pg_catalog.now();
