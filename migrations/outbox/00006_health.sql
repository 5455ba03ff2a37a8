-- +goose Up
-- How every relay process does, by itself: one row per process, the one that
-- holds the slot, those that stand by and those that are halted. It is written
-- when something changes, and never while nothing does. That a process lives is
-- read from pg_stat_activity: it has a session named "onceward process " || process.
CREATE TABLE onceward.relay_health (
  slot       text        NOT NULL,
  process    text        NOT NULL,           -- host/pid/random
  relay      text        NOT NULL,
  state      text        NOT NULL,
  since      timestamptz NOT NULL,           -- it is in this state
  code       text        NOT NULL,           -- of what halts it or ended its last session; may be empty
  detail     text        NOT NULL,           -- the same in words
  waits      jsonb       NOT NULL,           -- [{for, what, since, detail, events}]
  written_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  PRIMARY KEY (slot, process)
);

-- +goose Down
DROP TABLE onceward.relay_health;
