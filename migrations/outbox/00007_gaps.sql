-- +goose Up
-- The account of every row: for one relay each committed event is in exactly one
-- state. A relay that cannot prove that it published a stretch of the outbox keeps
-- that stretch as a gap: what is visible in to_snapshot and not in from_snapshot.

-- What a relay has published, apart from relay_state: a snapshot with many open
-- transactions is long, and every checkpoint would write it again.
CREATE TABLE onceward.published_snapshots (
  slot     text        PRIMARY KEY,
  snapshot pg_snapshot NOT NULL,  -- what is visible in it has ended, but for letters and gaps
  taken_at timestamptz NOT NULL
);
INSERT INTO onceward.published_snapshots (slot, snapshot, taken_at)
  SELECT s.slot, s.published_snapshot, COALESCE(s.published_at, s.updated_at) FROM onceward.relay_state AS s WHERE s.published_snapshot IS NOT NULL;
UPDATE onceward.relay_state AS s SET publication_catalog = s.publication_catalog || pg_catalog.format(' xmin %s', p.xmin)
  FROM pg_catalog.pg_publication AS p WHERE p.pubname = s.publication;
ALTER TABLE onceward.relay_state DROP COLUMN published_snapshot, DROP COLUMN published_at,
  DROP COLUMN repair_id, DROP COLUMN repair_from, DROP COLUMN repair_to, DROP COLUMN repair_cursor;

CREATE TABLE onceward.gaps (
  gap_id        uuid        PRIMARY KEY,
  slot          text        NOT NULL,
  cause         text        NOT NULL,            -- the code by which the relay named it; FIRST_START
  detail        text        NOT NULL,
  from_snapshot pg_snapshot NOT NULL,            -- the last published one
  to_snapshot   pg_snapshot NOT NULL,            -- what is not visible in it comes by the stream
  events        bigint      NOT NULL,            -- when it was found, dead letters left out
  state         text        NOT NULL CHECK (state IN ('open', 'repairing', 'repaired', 'accepted', 'before')),
  cursor        bigint      NOT NULL DEFAULT 0,  -- its events up to this seq were published by the repair
  found_at      timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  repaired_at   timestamptz,
  decided_by    text,
  decided_why   text,
  decided_at    timestamptz
);
CREATE INDEX gaps_slot ON onceward.gaps (slot, found_at);
CREATE INDEX gaps_undone ON onceward.gaps (slot) WHERE state <> 'repaired';
COMMENT ON COLUMN onceward.gaps.state IS 'open: somebody has to decide; repairing: the relay publishes its events; repaired: they are published; accepted: given up; before: older than the relay, which began with outbox.start: now.';

-- What operators decided about relays, in the transaction of its effect.
CREATE TABLE onceward.relay_actions (
  action_id    bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  action       text        NOT NULL,
  slot         text        NOT NULL,
  target       text        NOT NULL,             -- the gap, the leaf
  reason       text        NOT NULL,
  requested_by text        NOT NULL DEFAULT session_user,
  requested_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);

-- account says of one event in which state it is for each relay. It is what the
-- tool and retention judge by. One SELECT without SET, so that the planner makes
-- it part of the query that asks; its names were bound when it was made. The first
-- state that fits counts. Gaps of a relay have no event in common: the end of one is in
-- the published snapshot from which the next one begins.
-- +goose StatementBegin
CREATE FUNCTION onceward.account(event_id uuid, event_tx xid8, event_seq bigint)
RETURNS TABLE (slot text, relay text, state text, gap_id uuid, snapshot_at timestamptz) LANGUAGE sql STABLE PARALLEL SAFE BEGIN ATOMIC
  SELECT r.slot, r.relay,
    CASE
      WHEN d.state IN ('open', 'retrying') THEN 'parked'
      WHEN d.state = 'discarded' THEN 'discarded'
      WHEN d.state = 'replayed' THEN 'published'
      -- Events of a held route are judged here, before everything by snapshot.
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

-- +goose Down
DROP FUNCTION onceward.account(uuid, xid8, bigint);
DROP TABLE onceward.relay_actions;
ALTER TABLE onceward.relay_state ADD COLUMN published_snapshot pg_snapshot, ADD COLUMN published_at timestamptz,
  ADD COLUMN repair_id uuid, ADD COLUMN repair_from pg_snapshot, ADD COLUMN repair_to pg_snapshot, ADD COLUMN repair_cursor bigint;
UPDATE onceward.relay_state AS s SET published_snapshot = p.snapshot, published_at = p.taken_at
  FROM onceward.published_snapshots AS p WHERE p.slot = s.slot;
DROP TABLE onceward.gaps, onceward.published_snapshots;
