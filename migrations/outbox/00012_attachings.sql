-- +goose Up
-- A partition that held rows when it was attached stops a relay: nothing of them is
-- in the log. What a relay has looked at is an attaching: a partition that is
-- detached, filled and attached again is another one, and the row of pg_inherits
-- tells, also of one that was attached within a savepoint. pg_upgrade attaches every
-- partition anew and keeps their oids.
ALTER TABLE onceward.published_snapshots
  ADD COLUMN attachings bigint[]; -- those in the snapshot: the partition's oid << 32 | xmin in pg_inherits; NULL: not known

-- account as it was, but that snapshots of another system prove nothing here: in a
-- database that was restored or moved, until it is adopted, everything is pending.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION onceward.account(event_id uuid, event_tx xid8, event_seq bigint)
RETURNS TABLE (slot text, relay text, state text, gap_id uuid, snapshot_at timestamptz) LANGUAGE sql STABLE PARALLEL SAFE BEGIN ATOMIC
  SELECT r.slot, r.relay,
    CASE
      WHEN d.state IN ('open', 'retrying') THEN 'parked'
      WHEN d.state = 'discarded' THEN 'discarded'
      WHEN d.state = 'replayed' THEN 'published'
      WHEN EXISTS (SELECT FROM onceward.waiting AS w WHERE w.id = event_id AND r.slot = (SELECT l.slot FROM onceward.lanes AS l WHERE l.id = w.lane)) THEN 'waiting'
      WHEN r.system_identifier <> (SELECT c.system_identifier::text FROM pg_catalog.pg_control_system() AS c (control, catalog, system_identifier, modified)) THEN 'pending'
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

-- Rows that somebody filled a partition with have any seq: the cursor of a repair
-- that has not begun is below every one. adopt_kafka begins repairs anew.
ALTER TABLE onceward.gaps ALTER COLUMN cursor SET DEFAULT '-9223372036854775808';
UPDATE onceward.gaps SET cursor = DEFAULT WHERE cursor = 0 AND state <> 'repaired';
-- +goose StatementBegin
DO $do$
BEGIN
  EXECUTE pg_catalog.replace(pg_catalog.pg_get_functiondef('onceward.adopt_kafka(text, text, text, text, text)'::regprocedure),
    'UPDATE onceward.gaps AS g SET cursor = 0 WHERE', 'UPDATE onceward.gaps AS g SET cursor = DEFAULT WHERE');
END
$do$;
-- +goose StatementEnd

-- retire_relay as it was, but that a slot of this name in another database of the server is
-- not this relay's: in a copy beside its original it is the original's.
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
  ELSIF EXISTS (SELECT FROM pg_catalog.pg_replication_slots AS p WHERE p.slot_name = retire_relay.slot AND COALESCE(p.database = pg_catalog.current_database(), true)) THEN
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
-- +goose StatementBegin
DO $do$
BEGIN
  EXECUTE pg_catalog.replace(pg_catalog.pg_get_functiondef('onceward.adopt_kafka(text, text, text, text, text)'::regprocedure),
    'UPDATE onceward.gaps AS g SET cursor = DEFAULT WHERE', 'UPDATE onceward.gaps AS g SET cursor = 0 WHERE');
END
$do$;
-- +goose StatementEnd
ALTER TABLE onceward.gaps ALTER COLUMN cursor SET DEFAULT 0;
UPDATE onceward.gaps SET cursor = 0 WHERE cursor = '-9223372036854775808';
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
ALTER TABLE onceward.published_snapshots DROP COLUMN attachings;
