-- +goose Up
-- What the relay needs to write letters, to hold an aggregate behind them and to
-- release them again.

ALTER TABLE onceward.dead_letters
  ADD COLUMN holds            boolean NOT NULL DEFAULT false, -- later events of its aggregate follow it while it is open
  ADD COLUMN replay_of        uuid,                   -- of a replay's letter: the event's id
  ADD COLUMN replay_mode      text,                   -- of a replay's letter, as are the next two
  ADD COLUMN replay_group     text,
  ADD COLUMN topic            text,
  ADD COLUMN retry_index      bigint,                 -- its place among the letters of the control that released it, from 0
  ADD COLUMN original_payload bytea,                  -- what the first edit replaced, as is the next
  ADD COLUMN original_headers jsonb,
  ADD COLUMN edited_at        timestamptz,            -- the last edit; NULL: never edited
  ADD COLUMN edited_by        text,
  ADD COLUMN edited_why       text;
COMMENT ON COLUMN onceward.relay_state.dead_letters IS 'Writes of letters ever made: letters, controls that acted on them, retries that failed. A database that lacks some went back in time.';
COMMENT ON COLUMN onceward.dead_letters.position IS 'Start of the commit record of the event''s transaction.';
COMMENT ON COLUMN onceward.dead_letters.retry_position IS 'Start of the commit record of the control that released it.';

-- Names are hashed, because one that is too long for an index is itself a reason
-- for a letter.
DROP INDEX onceward.dead_letters_aggregate;
CREATE INDEX dead_letters_waiting ON onceward.dead_letters (slot,
    pg_catalog.hashtextextended(aggregate_id, pg_catalog.hashtextextended(aggregate_type, pg_catalog.hashtextextended(namespace, 0::bigint))),
    position, seq)
  WHERE state IN ('open', 'retrying');
CREATE INDEX dead_letters_released ON onceward.dead_letters (slot, control_id, retry_index)
  WHERE state IN ('open', 'retrying') AND retry_index IS NOT NULL;
CREATE INDEX dead_letters_position ON onceward.dead_letters (slot, position, letter_id);

ALTER TABLE onceward.controls
  ADD COLUMN payload_null boolean NOT NULL DEFAULT false, -- edit: makes a tombstone
  ADD CHECK (NOT payload_null OR payload IS NULL);
CREATE INDEX controls_letter ON onceward.controls (letter_id);

-- What became of the operator's words: one row per control and relay, written
-- with its effect, so that a control that is read again acts no second time.
CREATE TABLE onceward.control_results (
  slot       text        NOT NULL,
  control_id uuid        NOT NULL,
  position   pg_lsn      NOT NULL,           -- start of its commit record
  action     text        NOT NULL,
  letters    bigint      NOT NULL,           -- on which it acted
  note       text        NOT NULL,           -- why it did nothing; else empty
  acted_at   timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  PRIMARY KEY (slot, control_id)
);

-- +goose Down
DROP TABLE onceward.control_results;
DROP INDEX onceward.controls_letter;
ALTER TABLE onceward.controls DROP COLUMN payload_null;
DROP INDEX onceward.dead_letters_waiting, onceward.dead_letters_released, onceward.dead_letters_position;
ALTER TABLE onceward.dead_letters DROP COLUMN holds, DROP COLUMN replay_of, DROP COLUMN replay_mode, DROP COLUMN replay_group,
  DROP COLUMN topic, DROP COLUMN retry_index, DROP COLUMN original_payload, DROP COLUMN original_headers, DROP COLUMN edited_at,
  DROP COLUMN edited_by, DROP COLUMN edited_why;
CREATE INDEX dead_letters_aggregate ON onceward.dead_letters (slot, namespace, aggregate_type, aggregate_id, seq) WHERE state IN ('open', 'retrying');
