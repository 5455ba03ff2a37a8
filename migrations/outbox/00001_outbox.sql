-- +goose Up
-- The producer's database. Everything here is the contract of docs/contract.md.

CREATE TABLE onceward.outbox (
  id             uuid   NOT NULL,            -- the key's UUID; its time decides the partition
  namespace      text   NOT NULL,
  aggregate_type text   NOT NULL,            -- routes to the topic
  aggregate_id   text   NOT NULL,            -- the Kafka record key: the unit of order
  event_type     text   NOT NULL,
  payload        bytea,                      -- opaque bytes; NULL is a tombstone
  content_type   text   NOT NULL DEFAULT 'application/json',
  headers        jsonb,                      -- user's headers, string to string
  traceparent    text,                       -- W3C, from the writing request
  created_at     timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  tx_id          xid8   NOT NULL DEFAULT pg_catalog.pg_current_xact_id(),
  seq            bigint GENERATED ALWAYS AS IDENTITY,
  PRIMARY KEY (id)
) PARTITION BY RANGE (id);
CREATE INDEX outbox_tx_id ON onceward.outbox (tx_id);
COMMENT ON TABLE onceward.outbox IS 'Events, written in the transaction of their business rows. Append-only; there is no DEFAULT partition, ever.';

-- Orders to publish an event again. Published like the outbox.
CREATE TABLE onceward.replays (
  replay_id      uuid   PRIMARY KEY,         -- a fresh UUIDv7 per event and request
  id             uuid   NOT NULL,            -- from here on as in outbox
  namespace      text   NOT NULL,
  aggregate_type text   NOT NULL,
  aggregate_id   text   NOT NULL,
  event_type     text   NOT NULL,
  payload        bytea,
  content_type   text   NOT NULL DEFAULT 'application/json',
  headers        jsonb,
  traceparent    text,
  created_at     timestamptz NOT NULL,       -- of the original row
  tx_id          xid8   NOT NULL DEFAULT pg_catalog.pg_current_xact_id(),
  seq            bigint GENERATED ALWAYS AS IDENTITY,
  mode           text   NOT NULL DEFAULT 'redeliver' CHECK (mode IN ('redeliver', 'reprocess')),
  replay_group   text   CHECK ((mode = 'reprocess') = (replay_group IS NOT NULL)),
  topic          text,                       -- NULL: where the event's route leads
  reason         text   NOT NULL,
  requested_by   text   NOT NULL DEFAULT session_user,
  requested_at   timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
CREATE INDEX replays_id ON onceward.replays (id);
CREATE INDEX replays_tx_id ON onceward.replays (tx_id);

-- The operator's words that act in commit order, as rows in the stream.
CREATE TABLE onceward.controls (
  control_id     uuid   PRIMARY KEY,
  action         text   NOT NULL CHECK (action IN ('retry', 'discard', 'edit')),
  namespace      text,
  aggregate_type text,
  aggregate_id   text,                       -- retry of an aggregate
  letter_id      uuid,                       -- one dead letter
  payload        bytea,                      -- edit: what replaces the letter's
  headers        jsonb,
  tx_id          xid8   NOT NULL DEFAULT pg_catalog.pg_current_xact_id(),
  seq            bigint GENERATED ALWAYS AS IDENTITY,
  reason         text   NOT NULL,
  requested_by   text   NOT NULL DEFAULT session_user,
  requested_at   timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  CHECK ((letter_id IS NOT NULL) <> (aggregate_id IS NOT NULL))
);
CREATE INDEX controls_tx_id ON onceward.controls (tx_id);

-- One row per relay. Every write of a relay locks its row and checks the epoch.
CREATE TABLE onceward.relay_state (
  slot                text    PRIMARY KEY,
  relay               text    NOT NULL,
  database            text    NOT NULL,
  system_identifier   text    NOT NULL,
  timeline            integer NOT NULL,
  tick                bigint  NOT NULL DEFAULT 0,  -- grows with every checkpoint
  confirmed_lsn       pg_lsn  NOT NULL,            -- the durable checkpoint of idempotent mode
  epoch               bigint  NOT NULL DEFAULT 0,  -- grows with every session that owns the slot
  mode                text    NOT NULL DEFAULT 'idempotent' CHECK (mode IN ('idempotent', 'exactly-once')),
  published_snapshot  pg_snapshot,
  published_at        timestamptz,
  repair_id           uuid,
  repair_from         pg_snapshot,
  repair_to           pg_snapshot,
  repair_cursor       bigint,
  dead_letters        bigint  NOT NULL DEFAULT 0,  -- letters ever written
  publication         text    NOT NULL,
  publication_catalog text,                        -- oid + xmin of pg_publication_rel, oid + content of pg_publication
  paused              boolean NOT NULL DEFAULT false,
  paused_routes       text[]  NOT NULL DEFAULT '{}',
  skip                uuid[]  NOT NULL DEFAULT '{}',
  schema_version      integer NOT NULL DEFAULT 1,
  updated_at          timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);

-- Events that could not be published, whole, with the reason. The relay is the only writer.
CREATE TABLE onceward.dead_letters (
  slot           text   NOT NULL,
  letter_id      uuid   NOT NULL,            -- the event's id, or the replay's
  namespace      text   NOT NULL,
  aggregate_type text   NOT NULL,
  aggregate_id   text   NOT NULL,
  event_type     text   NOT NULL,
  payload        bytea,
  content_type   text   NOT NULL,
  headers        jsonb,
  traceparent    text,
  created_at     timestamptz NOT NULL,
  tx_id          xid8   NOT NULL,
  seq            bigint NOT NULL,
  position       pg_lsn NOT NULL,            -- commit end of its transaction
  error_class    text   NOT NULL,
  error          text   NOT NULL,
  attempts       integer NOT NULL DEFAULT 1,
  first_at       timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  last_at        timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  state          text   NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'retrying', 'replayed', 'discarded')),
  retry_position pg_lsn,                     -- of the control that released it
  control_id     uuid,                       -- the last word that acted on it
  decided_by     text,
  decided_why    text,
  PRIMARY KEY (slot, letter_id)
);
CREATE INDEX dead_letters_aggregate ON onceward.dead_letters (slot, namespace, aggregate_type, aggregate_id, seq) WHERE state IN ('open', 'retrying');

-- +goose Down
DROP TABLE onceward.dead_letters, onceward.relay_state, onceward.controls, onceward.replays, onceward.outbox;
