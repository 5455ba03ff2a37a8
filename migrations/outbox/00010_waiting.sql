-- +goose Up
-- Events whose route cannot be used for now. They are written down, so that the
-- relay goes on past them: they cost neither the slot, nor the published
-- snapshot, nor memory. The payload stays in the outbox.

-- What is held back: all aggregates of one type, or the replays to one topic. An
-- id is never used again: what is held once more is another lane.
CREATE TABLE onceward.lanes (
  id             integer     GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  slot           text        NOT NULL,
  namespace      text        NOT NULL,
  aggregate_type text        NOT NULL,
  topic          text        NOT NULL,        -- of replays that name one; then the two before are empty
  held_at        timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
CREATE INDEX lanes_slot ON onceward.lanes (slot);

CREATE TABLE onceward.waiting (
  position pg_lsn  NOT NULL,                  -- start of the commit record
  tx_id    xid8    NOT NULL,
  lane     integer NOT NULL,
  ordinal  integer NOT NULL,                  -- among the items of the transaction
  id       uuid    NOT NULL,                  -- of the event, the replay or the control
  PRIMARY KEY (lane, position, ordinal)
);
CREATE INDEX waiting_id ON onceward.waiting (id); -- is this event waiting?

-- What cannot be read back equal is kept whole: replays, controls, bad rows.
-- Of what a gap's repair met, the gap.
CREATE TABLE onceward.waiting_copies (
  lane     integer NOT NULL,
  position pg_lsn  NOT NULL,
  ordinal  integer NOT NULL,
  kind     text    NOT NULL CHECK (kind IN ('event', 'replay', 'control', 'repair')),
  letter   bigint  NOT NULL DEFAULT 0,        -- of a retry: how many of its letters are out
  item     bytea   NOT NULL,
  PRIMARY KEY (lane, position, ordinal)
);

-- Lanes that are being published, in this order: one release of a relay at a
-- time. How far it has come is in the checkpoint that carries its number.
CREATE TABLE onceward.releases (
  slot     text        PRIMARY KEY,
  release  bigint      NOT NULL,
  lanes    integer[]   NOT NULL,
  began_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);

ALTER TABLE onceward.relay_state ADD COLUMN checkpoint text;
COMMENT ON COLUMN onceward.relay_state.checkpoint IS 'The whole checkpoint of which confirmed_lsn is the position.';
COMMENT ON COLUMN onceward.relay_state.dead_letters IS 'Writes of letters and of waiting events ever made: letters, controls that acted on them, retries that failed, what was held and released. A database that lacks some went back in time.';

-- account as it was, and what waits for its route: before everything by snapshot,
-- which passes what is written down.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION onceward.account(event_id uuid, event_tx xid8, event_seq bigint)
RETURNS TABLE (slot text, relay text, state text, gap_id uuid, snapshot_at timestamptz) LANGUAGE sql STABLE PARALLEL SAFE BEGIN ATOMIC
  SELECT r.slot, r.relay,
    CASE
      WHEN d.state IN ('open', 'retrying') THEN 'parked'
      WHEN d.state = 'discarded' THEN 'discarded'
      WHEN d.state = 'replayed' THEN 'published'
      WHEN EXISTS (SELECT FROM onceward.waiting AS w WHERE w.id = event_id AND r.slot = (SELECT l.slot FROM onceward.lanes AS l WHERE l.id = w.lane)) THEN 'waiting'
      WHEN g.state = 'before' THEN 'before'
      WHEN g.state = 'open' THEN 'gap'
      WHEN g.state = 'accepted' THEN 'given-up'
      WHEN g.state = 'repairing' THEN 'pending'
      WHEN pg_catalog.pg_visible_in_snapshot(event_tx, p.snapshot) THEN 'published'
      ELSE 'pending'
    END, g.gap_id, p.taken_at
  FROM onceward.relay_state AS r
  LEFT JOIN onceward.published_snapshots AS p ON p.slot = r.slot
  LEFT JOIN onceward.dead_letters AS d ON d.slot = r.slot AND d.letter_id = event_id
  LEFT JOIN onceward.gaps AS g ON g.slot = r.slot AND g.state <> 'repaired' AND event_seq > g.cursor
    AND pg_catalog.pg_visible_in_snapshot(event_tx, g.to_snapshot) AND NOT pg_catalog.pg_visible_in_snapshot(event_tx, g.from_snapshot);
END;
-- +goose StatementEnd
COMMENT ON FUNCTION onceward.account(uuid, xid8, bigint) IS
  'The state of an event for each relay: parked, discarded, waiting, before, gap, given-up, published or pending.';

-- retire_relay as it was; what waits for a route of a relay that is gone goes with it.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION onceward.retire_relay(slot text, reason text) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $retire$
DECLARE
  relay_name text;
  letters    bigint;
BEGIN
  IF COALESCE(retire_relay.reason, '') = '' THEN
    RAISE EXCEPTION 'a reason is missing' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  -- A relay that starts waits for this row, and finds itself forgotten.
  SELECT r.relay INTO relay_name FROM onceward.relay_state AS r WHERE r.slot = retire_relay.slot FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no relay with slot %: `outboxctl status` names them', retire_relay.slot USING ERRCODE = 'OW006';
  ELSIF EXISTS (SELECT FROM pg_catalog.pg_replication_slots AS p WHERE p.slot_name = retire_relay.slot) THEN
    RAISE EXCEPTION 'slot % exists: drop it first (SELECT pg_catalog.pg_drop_replication_slot(%);), and make sure that no relay uses it',
      retire_relay.slot, pg_catalog.quote_literal(retire_relay.slot) USING ERRCODE = 'OW006';
  END IF;
  UPDATE onceward.dead_letters AS d
    SET state = 'discarded', retry_position = NULL, retry_index = NULL, decided_by = session_user, decided_why = retire_relay.reason,
      last_at = pg_catalog.clock_timestamp()
    WHERE d.slot = retire_relay.slot AND d.state IN ('open', 'retrying');
  GET DIAGNOSTICS letters = ROW_COUNT;
  DELETE FROM onceward.waiting AS w USING onceward.lanes AS l WHERE l.slot = retire_relay.slot AND w.lane = l.id;
  DELETE FROM onceward.waiting_copies AS c USING onceward.lanes AS l WHERE l.slot = retire_relay.slot AND c.lane = l.id;
  DELETE FROM onceward.lanes AS l WHERE l.slot = retire_relay.slot;
  DELETE FROM onceward.releases AS r WHERE r.slot = retire_relay.slot;
  DELETE FROM onceward.gaps AS g WHERE g.slot = retire_relay.slot;
  DELETE FROM onceward.published_snapshots AS p WHERE p.slot = retire_relay.slot;
  DELETE FROM onceward.relay_state AS r WHERE r.slot = retire_relay.slot;
  INSERT INTO onceward.relay_actions (action, slot, target, reason)
    VALUES ('retire', retire_relay.slot, pg_catalog.format('relay %s, %s dead letters discarded', relay_name, letters), retire_relay.reason);
  RETURN letters;
END
$retire$;
-- +goose StatementEnd

-- +goose Down
-- What waits is told by these tables alone: without them it would count as published.
-- +goose StatementBegin
DO $$
BEGIN
  IF EXISTS (SELECT FROM onceward.waiting) THEN
    RAISE EXCEPTION 'events wait for their routes: let the relay publish them first, `outboxctl list --state waiting` lists them';
  END IF;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION onceward.account(event_id uuid, event_tx xid8, event_seq bigint)
RETURNS TABLE (slot text, relay text, state text, gap_id uuid, snapshot_at timestamptz) LANGUAGE sql STABLE PARALLEL SAFE BEGIN ATOMIC
  SELECT r.slot, r.relay,
    CASE
      WHEN d.state IN ('open', 'retrying') THEN 'parked'
      WHEN d.state = 'discarded' THEN 'discarded'
      WHEN d.state = 'replayed' THEN 'published'
      WHEN g.state = 'before' THEN 'before'
      WHEN g.state = 'open' THEN 'gap'
      WHEN g.state = 'accepted' THEN 'given-up'
      WHEN g.state = 'repairing' THEN 'pending'
      WHEN pg_catalog.pg_visible_in_snapshot(event_tx, p.snapshot) THEN 'published'
      ELSE 'pending'
    END, g.gap_id, p.taken_at
  FROM onceward.relay_state AS r
  LEFT JOIN onceward.published_snapshots AS p ON p.slot = r.slot
  LEFT JOIN onceward.dead_letters AS d ON d.slot = r.slot AND d.letter_id = event_id
  LEFT JOIN onceward.gaps AS g ON g.slot = r.slot AND g.state <> 'repaired' AND event_seq > g.cursor
    AND pg_catalog.pg_visible_in_snapshot(event_tx, g.to_snapshot) AND NOT pg_catalog.pg_visible_in_snapshot(event_tx, g.from_snapshot);
END;
-- +goose StatementEnd
COMMENT ON FUNCTION onceward.account(uuid, xid8, bigint) IS
  'The state of an event for each relay: parked, discarded, before, gap, given-up, published or pending.';
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION onceward.retire_relay(slot text, reason text) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $retire$
DECLARE
  relay_name text;
  letters    bigint;
BEGIN
  IF COALESCE(retire_relay.reason, '') = '' THEN
    RAISE EXCEPTION 'a reason is missing' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  -- A relay that starts waits for this row, and finds itself forgotten.
  SELECT r.relay INTO relay_name FROM onceward.relay_state AS r WHERE r.slot = retire_relay.slot FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no relay with slot %: `outboxctl status` names them', retire_relay.slot USING ERRCODE = 'OW006';
  ELSIF EXISTS (SELECT FROM pg_catalog.pg_replication_slots AS p WHERE p.slot_name = retire_relay.slot) THEN
    RAISE EXCEPTION 'slot % exists: drop it first (SELECT pg_catalog.pg_drop_replication_slot(%);), and make sure that no relay uses it',
      retire_relay.slot, pg_catalog.quote_literal(retire_relay.slot) USING ERRCODE = 'OW006';
  END IF;
  UPDATE onceward.dead_letters AS d
    SET state = 'discarded', retry_position = NULL, retry_index = NULL, decided_by = session_user, decided_why = retire_relay.reason,
      last_at = pg_catalog.clock_timestamp()
    WHERE d.slot = retire_relay.slot AND d.state IN ('open', 'retrying');
  GET DIAGNOSTICS letters = ROW_COUNT;
  DELETE FROM onceward.gaps AS g WHERE g.slot = retire_relay.slot;
  DELETE FROM onceward.published_snapshots AS p WHERE p.slot = retire_relay.slot;
  DELETE FROM onceward.relay_state AS r WHERE r.slot = retire_relay.slot;
  INSERT INTO onceward.relay_actions (action, slot, target, reason)
    VALUES ('retire', retire_relay.slot, pg_catalog.format('relay %s, %s dead letters discarded', relay_name, letters), retire_relay.reason);
  RETURN letters;
END
$retire$;
-- +goose StatementEnd
ALTER TABLE onceward.relay_state DROP COLUMN checkpoint;
DROP TABLE onceward.releases, onceward.waiting_copies, onceward.waiting, onceward.lanes;
