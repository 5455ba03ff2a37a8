-- +goose Up
-- account as it was, but that a gap of which nothing is repaired has the rows of the
-- smallest seq as well: who fills a partition may choose it. A replay has none (NULL).
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
  LEFT JOIN onceward.gaps AS g ON g.slot = r.slot AND g.state <> 'repaired'
    AND (event_seq > g.cursor OR event_seq = g.cursor AND g.cursor = '-9223372036854775808')
    AND pg_catalog.pg_visible_in_snapshot(event_tx, g.to_snapshot) AND NOT pg_catalog.pg_visible_in_snapshot(event_tx, g.from_snapshot);
END;
-- +goose StatementEnd

-- retire_relay as it was, but that letters which were released are forgotten with the
-- rest of what the relay had published: one of this name that begins anew publishes them.
-- +goose StatementBegin
DO $do$
BEGIN
  EXECUTE pg_catalog.replace(pg_catalog.pg_get_functiondef('onceward.retire_relay(text, text)'::regprocedure),
    '  DELETE FROM onceward.waiting AS w USING', '  DELETE FROM onceward.dead_letters AS d WHERE d.slot = retire_relay.slot AND d.state = ''replayed'';
  DELETE FROM onceward.waiting AS w USING');
END
$do$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DO $do$
BEGIN
  EXECUTE pg_catalog.replace(pg_catalog.pg_get_functiondef('onceward.retire_relay(text, text)'::regprocedure),
    '  DELETE FROM onceward.dead_letters AS d WHERE d.slot = retire_relay.slot AND d.state = ''replayed'';
  DELETE FROM onceward.waiting AS w USING', '  DELETE FROM onceward.waiting AS w USING');
END
$do$;
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
