-- What PostgreSQL binds to functions and operators when it is made, once more:
-- migrate up runs this, and 00005 behind it, where something in schema onceward
-- leans on a function that is neither PostgreSQL's nor ours. It holds all of the
-- older migrations that has an expression; a test compares.
SET LOCAL lock_timeout = '2s';

ALTER TABLE onceward.outbox
  ALTER COLUMN created_at SET DEFAULT pg_catalog.clock_timestamp(),
  ALTER COLUMN tx_id SET DEFAULT pg_catalog.pg_current_xact_id();

ALTER TABLE onceward.replays
  ALTER COLUMN tx_id SET DEFAULT pg_catalog.pg_current_xact_id(),
  ALTER COLUMN requested_at SET DEFAULT pg_catalog.clock_timestamp(),
  DROP CONSTRAINT IF EXISTS replays_mode_check,
  DROP CONSTRAINT IF EXISTS replays_check,
  ADD CONSTRAINT replays_mode_check CHECK (mode IN ('redeliver', 'reprocess')),
  ADD CONSTRAINT replays_check CHECK ((mode = 'reprocess') = (replay_group IS NOT NULL));

ALTER TABLE onceward.controls
  ALTER COLUMN tx_id SET DEFAULT pg_catalog.pg_current_xact_id(),
  ALTER COLUMN requested_at SET DEFAULT pg_catalog.clock_timestamp(),
  DROP CONSTRAINT IF EXISTS controls_action_check,
  DROP CONSTRAINT IF EXISTS controls_check,
  DROP CONSTRAINT IF EXISTS controls_check1,
  ADD CONSTRAINT controls_action_check CHECK (action IN ('retry', 'discard', 'edit')),
  ADD CONSTRAINT controls_check CHECK ((letter_id IS NOT NULL) <> (aggregate_id IS NOT NULL)),
  ADD CONSTRAINT controls_check1 CHECK (NOT payload_null OR payload IS NULL);

ALTER TABLE onceward.relay_state
  ALTER COLUMN updated_at SET DEFAULT pg_catalog.clock_timestamp(),
  DROP CONSTRAINT IF EXISTS relay_state_mode_check,
  ADD CONSTRAINT relay_state_mode_check CHECK (mode IN ('idempotent', 'exactly-once'));

DROP INDEX IF EXISTS onceward.dead_letters_waiting, onceward.dead_letters_released;
ALTER TABLE onceward.dead_letters
  ALTER COLUMN first_at SET DEFAULT pg_catalog.clock_timestamp(),
  ALTER COLUMN last_at SET DEFAULT pg_catalog.clock_timestamp(),
  DROP CONSTRAINT IF EXISTS dead_letters_state_check,
  ADD CONSTRAINT dead_letters_state_check CHECK (state IN ('open', 'retrying', 'replayed', 'discarded'));
CREATE INDEX dead_letters_waiting ON onceward.dead_letters (slot,
    pg_catalog.hashtextextended(aggregate_id, pg_catalog.hashtextextended(aggregate_type, pg_catalog.hashtextextended(namespace, 0::bigint))),
    position, seq)
  WHERE state IN ('open', 'retrying');
CREATE INDEX dead_letters_released ON onceward.dead_letters (slot, control_id, retry_index)
  WHERE state IN ('open', 'retrying') AND retry_index IS NOT NULL;

ALTER TABLE onceward.control_results
  ALTER COLUMN acted_at SET DEFAULT pg_catalog.clock_timestamp();

ALTER TABLE onceward.outbox_migrations
  ALTER COLUMN tstamp SET DEFAULT pg_catalog.now();
