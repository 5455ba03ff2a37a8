-- +goose Up
-- The consumer's database. Everything here is the contract of docs/contract.md.

CREATE TABLE onceward.processed_events (
  event_id       uuid   NOT NULL,
  consumer_group text   NOT NULL,
  event_type     text   NOT NULL,
  namespace      text   NOT NULL,
  fingerprint    bytea  NOT NULL,            -- 16 bytes of SHA-256 over namespace, type, aggregate, payload
  outcome        "char" NOT NULL CHECK (outcome IN ('p', 'd')), -- processed, dead
  result         jsonb,                      -- what the handler returned, for duplicates to return again
  processed_at   timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  PRIMARY KEY (event_id, consumer_group)
) PARTITION BY RANGE (event_id);
COMMENT ON TABLE onceward.processed_events IS 'One row per event and group that was applied. There is no DEFAULT partition, ever: it would take a replay for new.';

-- Effects outside PostgreSQL, one row per attempt series.
CREATE TABLE onceward.fences (
  event_id       uuid   NOT NULL,
  consumer_group text   NOT NULL,
  name           text   NOT NULL,
  status         text   NOT NULL DEFAULT 'PENDING' CHECK (status IN ('PENDING', 'COMPLETE')),
  epoch          bigint NOT NULL DEFAULT 1,
  owner          text   NOT NULL,
  lease_until    timestamptz NOT NULL,
  request_fingerprint bytea NOT NULL,
  provider_key_until  timestamptz,           -- a PENDING fence past this is never driven blindly
  result         jsonb,
  created_at     timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  completed_at   timestamptz,
  expires_at     timestamptz,
  PRIMARY KEY (event_id, consumer_group, name)
);
CREATE INDEX fences_pending ON onceward.fences (lease_until) WHERE status = 'PENDING';
CREATE INDEX fences_expires ON onceward.fences (expires_at) WHERE status = 'COMPLETE';

-- Failed tries of a handler, kept outside the rolled-back transaction.
CREATE TABLE onceward.attempts (
  event_id       uuid   NOT NULL,
  consumer_group text   NOT NULL,
  attempts       integer NOT NULL DEFAULT 1,
  last_error     text   NOT NULL,
  next_at        timestamptz,
  expires_at     timestamptz NOT NULL,
  PRIMARY KEY (event_id, consumer_group)
);
CREATE INDEX attempts_expires ON onceward.attempts (expires_at);

-- How far each group has got in each topic partition.
CREATE TABLE onceward.progress (
  consumer_group  text    NOT NULL,
  topic           text    NOT NULL,
  kafka_partition integer NOT NULL,
  low_offset      bigint  NOT NULL,          -- the first offset the group ever saw
  high_offset     bigint  NOT NULL,          -- the last one it finished
  finished_time   timestamptz,               -- highest event time finished
  updated_at      timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  PRIMARY KEY (consumer_group, topic, kafka_partition)
);

-- The window and the floor of each event class of each group.
CREATE TABLE onceward.dedup_windows (
  consumer_group  text     NOT NULL,
  class           text     NOT NULL,         -- event type pattern
  time_window     interval NOT NULL,
  floor           timestamptz NOT NULL,      -- only ever raised
  late            text     NOT NULL DEFAULT 'process' CHECK (late IN ('process', 'dead-letter')),
  replay          text     NOT NULL DEFAULT 'dead-letter' CHECK (replay IN ('dead-letter', 'park', 'process')),
  keyed           text     NOT NULL DEFAULT 'event-time' CHECK (keyed IN ('event-time', 'arrival')),
  registered_at   timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  retired_at      timestamptz,
  PRIMARY KEY (consumer_group, class)
);

-- Messages that could not be applied. A message without a key has nothing else than its offset.
CREATE TABLE onceward.consumer_dead_letters (
  consumer_group  text    NOT NULL,
  topic           text    NOT NULL,
  kafka_partition integer NOT NULL,
  kafka_offset    bigint  NOT NULL,
  event_id        uuid,
  namespace       text,
  event_type      text,
  record_key      bytea,
  record_value    bytea,
  record_headers  jsonb,                     -- name to base64 value, in order, as an array of pairs
  reason          text    NOT NULL,          -- malformed, mismatch, handler, replay, late, from-future
  error           text    NOT NULL,
  attempts        integer NOT NULL DEFAULT 0,
  state           text    NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'redriven', 'discarded')),
  generation      integer NOT NULL DEFAULT 0,
  created_at      timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  decided_at      timestamptz,
  decided_by      text,
  decided_why     text,
  expires_at      timestamptz,
  PRIMARY KEY (consumer_group, topic, kafka_partition, kafka_offset)
);
CREATE INDEX consumer_dead_letters_event ON onceward.consumer_dead_letters (event_id, consumer_group);

-- +goose Down
DROP TABLE onceward.consumer_dead_letters, onceward.dedup_windows, onceward.progress, onceward.attempts, onceward.fences, onceward.processed_events;
