-- +goose Up
-- What windows, redrive and the recovery of fences need.

-- The event of a PENDING fence, so that an attempt that died can be recovered when nobody delivers the event again.
-- NULL once the fence is COMPLETE.
ALTER TABLE onceward.fences ADD COLUMN event jsonb;
-- Why the recovery job leaves a PENDING fence to an operator; NULL while it may be driven.
ALTER TABLE onceward.fences ADD COLUMN stuck text;

-- When the floor was changed last: partitions go only when every process has had time to see it, and the audit tells by
-- it which claims below the floor were made when they should not have been.
ALTER TABLE onceward.dedup_windows ADD COLUMN raised_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp();

-- A letter whose redrive was asked for waits for a member of its group.
ALTER TABLE onceward.consumer_dead_letters DROP CONSTRAINT consumer_dead_letters_state_check;
ALTER TABLE onceward.consumer_dead_letters ADD CONSTRAINT consumer_dead_letters_state_check
  CHECK (state IN ('open', 'requested', 'redriven', 'discarded'));
ALTER TABLE onceward.consumer_dead_letters ADD COLUMN sent_at timestamptz; -- copied to the Kafka topic of dead letters
CREATE INDEX consumer_dead_letters_unsent ON onceward.consumer_dead_letters (consumer_group) WHERE sent_at IS NULL;
CREATE INDEX consumer_dead_letters_requested ON onceward.consumer_dead_letters (consumer_group) WHERE state = 'requested';
CREATE INDEX consumer_dead_letters_expires ON onceward.consumer_dead_letters (expires_at) WHERE expires_at IS NOT NULL;

-- Everything before this instant may be gone from processed_events. Raised, under a lock on dedup_windows, before a
-- partition is detached, so that no group registers a floor below.
CREATE TABLE onceward.dedup_horizon (
  one            boolean PRIMARY KEY DEFAULT true CHECK (one),
  dropped_before timestamptz NOT NULL
);

-- The claims of dead events, which are few, for the audit of claims against letters.
CREATE INDEX processed_events_dead ON onceward.processed_events (consumer_group, event_id) WHERE outcome = 'd';

-- How late duplicates come, for the window advisor: a histogram by powers of two of a second.
CREATE TABLE onceward.redeliveries (
  consumer_group text     NOT NULL,
  event_type     text     NOT NULL,
  age_log2       smallint NOT NULL,          -- ages of 2^n to 2^(n+1) seconds; 0 holds the younger ones too
  seen           bigint   NOT NULL,
  oldest         interval NOT NULL,
  last_at        timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  PRIMARY KEY (consumer_group, event_type, age_log2)
);

-- What operators did on this side, and why.
CREATE TABLE onceward.consumer_actions (
  id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at             timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  by_role        text NOT NULL DEFAULT session_user,
  action         text NOT NULL,              -- the command, e.g. dead redrive
  consumer_group text NOT NULL,
  target         text NOT NULL,              -- key, place or class
  reason         text NOT NULL
);

-- +goose Down
DROP TABLE onceward.consumer_actions, onceward.redeliveries, onceward.dedup_horizon;
DROP INDEX onceward.processed_events_dead;
DROP INDEX onceward.consumer_dead_letters_expires, onceward.consumer_dead_letters_requested;
ALTER TABLE onceward.consumer_dead_letters DROP COLUMN sent_at;
UPDATE onceward.consumer_dead_letters SET state = 'open' WHERE state = 'requested';
ALTER TABLE onceward.consumer_dead_letters DROP CONSTRAINT consumer_dead_letters_state_check;
ALTER TABLE onceward.consumer_dead_letters ADD CONSTRAINT consumer_dead_letters_state_check
  CHECK (state IN ('open', 'redriven', 'discarded'));
ALTER TABLE onceward.dedup_windows DROP COLUMN raised_at;
ALTER TABLE onceward.fences DROP COLUMN event, DROP COLUMN stuck;
