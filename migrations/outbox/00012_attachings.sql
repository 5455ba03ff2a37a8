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
