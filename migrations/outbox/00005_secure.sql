-- +goose Up
-- Nobody gets in: the table refuses what onceward.enqueue refuses, whoever writes,
-- and the functions look no name up in a schema of somebody else. Everything here
-- can be repeated: migrate up does so where something leans on a foreign function.

-- Behind one who waits for this lock all writers wait: give way soon. migrate up tries again.
SET LOCAL lock_timeout = '2s';

-- Each statement plans the CHECKs anew, so they are short: a bracket costs a third
-- of translate, and a bounded repetition thirty times as much. NOT VALID: the rows
-- that are there are looked at by migrate up afterwards, which holds no writer back.
ALTER TABLE onceward.outbox
  DROP CONSTRAINT IF EXISTS outbox_namespace,
  DROP CONSTRAINT IF EXISTS outbox_aggregate_type,
  DROP CONSTRAINT IF EXISTS outbox_aggregate_id,
  DROP CONSTRAINT IF EXISTS outbox_event_type,
  DROP CONSTRAINT IF EXISTS outbox_content_type,
  DROP CONSTRAINT IF EXISTS outbox_payload,
  DROP CONSTRAINT IF EXISTS outbox_headers,
  DROP CONSTRAINT IF EXISTS outbox_traceparent,
  ADD CONSTRAINT outbox_namespace      CHECK (pg_catalog.octet_length(namespace) <= 63 AND namespace ~ '^[a-z][a-z0-9._-]*$') NOT VALID,
  ADD CONSTRAINT outbox_aggregate_type CHECK (pg_catalog.octet_length(aggregate_type) <= 255 AND aggregate_type <> '') NOT VALID,
  ADD CONSTRAINT outbox_aggregate_id   CHECK (pg_catalog.octet_length(aggregate_id) <= 4096 AND aggregate_id <> '') NOT VALID,
  ADD CONSTRAINT outbox_event_type     CHECK (pg_catalog.octet_length(event_type) <= 255 AND event_type ~ E'^[^\\x01-\\x1f\\x7f]+$') NOT VALID,
  ADD CONSTRAINT outbox_content_type   CHECK (pg_catalog.octet_length(content_type) <= 255 AND content_type ~ E'^[^\\x01-\\x1f\\x7f]+$') NOT VALID,
  ADD CONSTRAINT outbox_payload        CHECK (pg_catalog.octet_length(payload) <= 66060288) NOT VALID,
  ADD CONSTRAINT outbox_headers        CHECK (pg_catalog.octet_length(headers::text) <= 1048576
    AND NOT headers @? 'strict $ ? (@.type() <> "object" || exists (@.* ? (@.type() <> "string")))') NOT VALID,
  ADD CONSTRAINT outbox_traceparent    CHECK (pg_catalog.octet_length(traceparent) <= 255 AND traceparent !~ E'[\\x01-\\x1f\\x7f]') NOT VALID;

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION onceward.enqueue(
  key            text,
  aggregate_type text,
  aggregate_id   text,
  event_type     text,
  payload        bytea,
  content_type   text  DEFAULT 'application/json',
  headers        jsonb DEFAULT NULL,
  traceparent    text  DEFAULT NULL
) RETURNS text LANGUAGE plpgsql VOLATILE SECURITY INVOKER
SET search_path = pg_catalog, pg_temp AS $enqueue$
DECLARE
  colon    integer := pg_catalog.strpos(key, ':');
  space    text    := pg_catalog.left(key, colon - 1);   -- the namespace; broken keys are refused before it is used
  tail     text    := pg_catalog.substr(key, colon + 1);
  media    text    := coalesce(nullif(content_type, ''), 'application/json');
  extra    jsonb   := CASE WHEN headers <> '{}'::jsonb THEN headers END; -- none and empty are one content
  ms       bigint;
  at       timestamptz;
  added    bigint;
  same     boolean;
  bad      text;
  place    text;
  rule     text;
BEGIN
  IF key IS NULL OR colon = 0 THEN
    RAISE EXCEPTION 'malformed idempotency key "%": separator: no colon found', key
      USING ERRCODE = 'OW002', HINT = 'The form is <namespace>:<uuid>.';
  END IF;
  IF space !~ '^[a-z][a-z0-9._-]{0,62}$' THEN
    RAISE EXCEPTION 'malformed idempotency key "%": namespace: want [a-z][a-z0-9._-]{0,62}', key USING ERRCODE = 'OW002';
  END IF;
  IF tail !~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$' THEN
    RAISE EXCEPTION 'malformed idempotency key "%": uuid: want 36 lower-case characters in the form 8-4-4-4-12', key USING ERRCODE = 'OW002';
  END IF;
  IF pg_catalog.substr(tail, 20, 1) !~ '[89ab]' THEN
    RAISE EXCEPTION 'malformed idempotency key "%": variant: want that of RFC 9562', key USING ERRCODE = 'OW002';
  END IF;
  IF pg_catalog.substr(tail, 15, 1) !~ '[78]' THEN
    RAISE EXCEPTION 'malformed idempotency key "%": version: % found, want 7 or 8', key, pg_catalog.substr(tail, 15, 1)
      USING ERRCODE = 'OW002', HINT = 'docs/contract.md says how to make a key from an id of another kind.';
  END IF;
  ms := ('x' || pg_catalog.left(tail, 8) || pg_catalog.substr(tail, 10, 4))::bit(48)::bigint;
  IF ms < 1420070400000 THEN
    RAISE EXCEPTION 'malformed idempotency key "%": past: the event time lies before 2015; are these milliseconds?', key USING ERRCODE = 'OW002';
  END IF;
  IF ms > pg_catalog.floor(extract(epoch FROM pg_catalog.clock_timestamp() + interval '5 minutes') * 1000) THEN
    RAISE EXCEPTION 'malformed idempotency key "%": future: the event time lies more than 5 minutes ahead of the server', key USING ERRCODE = 'OW002';
  END IF;
  at := pg_catalog.to_timestamp(ms / 1000.0);

  bad := CASE
    WHEN coalesce(aggregate_type, '') = '' THEN 'aggregate_type: empty; it is required'
    WHEN pg_catalog.octet_length(aggregate_type) > 255 THEN 'aggregate_type: longer than 255 bytes'
    WHEN coalesce(aggregate_id, '') = '' THEN 'aggregate_id: empty; it is required'
    WHEN pg_catalog.octet_length(aggregate_id) > 4096 THEN 'aggregate_id: longer than 4096 bytes'
    WHEN coalesce(event_type, '') = '' THEN 'event_type: empty; it is required'
    WHEN pg_catalog.octet_length(event_type) > 255 THEN 'event_type: longer than 255 bytes'
    WHEN pg_catalog.octet_length(media) > 255 THEN 'content_type: longer than 255 bytes'
    WHEN pg_catalog.octet_length(payload) > 66060288 THEN 'payload: longer than 63 MiB'
    WHEN traceparent !~ '^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?$'
      OR traceparent ~ '^00-.{53}' OR pg_catalog.octet_length(traceparent) > 255 THEN 'traceparent: not a W3C trace context'
    WHEN (event_type || media || coalesce(traceparent, '')) ~ E'[\\x01-\\x1f\\x7f]' THEN 'event_type, content_type or traceparent: holds a control character'
    WHEN pg_catalog.jsonb_typeof(extra) <> 'object' THEN 'headers: want an object of strings'
  END;
  IF bad IS NULL AND extra IS NOT NULL THEN
    SELECT pg_catalog.format('headers[%s]: ', pg_catalog.to_jsonb(h.name)) || CASE
        WHEN h.name = '' OR pg_catalog.octet_length(h.name) > 255 THEN 'a name has 1 to 255 bytes'
        WHEN pg_catalog.jsonb_typeof(h.value) <> 'string' THEN 'the value is no string'
        ELSE 'reserved by the wire contract; choose another name' END
      INTO bad
      FROM pg_catalog.jsonb_each(extra) AS h (name, value)
      WHERE h.name = '' OR pg_catalog.octet_length(h.name) > 255 OR pg_catalog.jsonb_typeof(h.value) <> 'string'
        OR pg_catalog.starts_with(h.name, 'ce_') OR h.name IN ('idempotency-key', 'event-type', 'aggregate-type', 'content-type', 'occurred-at',
          'traceparent', 'position', 'replay-id', 'replay-mode', 'replay-group', 'repair-id', 'id', 'eventType')
      ORDER BY h.name LIMIT 1;
    IF bad IS NULL AND (SELECT pg_catalog.sum(pg_catalog.octet_length(h.name) + pg_catalog.octet_length(h.value))
        FROM pg_catalog.jsonb_each_text(extra) AS h (name, value)) > 65536 THEN
      bad := 'headers: more than 64 KiB in names and values';
    END IF;
  END IF;
  IF bad IS NOT NULL THEN
    RAISE EXCEPTION 'invalid event %: %', key, bad USING ERRCODE = 'OW003';
  END IF;

  -- A handler of exceptions costs a subtransaction, so there is one only where the
  -- INSERT may well fail: for a day whose partition is not attached under its name,
  -- or that is over and may be closed, and for one with other CHECKs than the 8 of
  -- this schema, which the tests above do not know.
  IF at > pg_catalog.clock_timestamp() - interval '1 day' AND EXISTS (SELECT FROM pg_catalog.pg_class AS c
      WHERE c.oid = pg_catalog.to_regclass('onceward.outbox_' || pg_catalog.to_char(at AT TIME ZONE 'UTC', 'YYYYMMDD'))
        AND c.relispartition AND c.relchecks = 8) THEN
    INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload, content_type, headers, traceparent)
      VALUES (tail::uuid, space, enqueue.aggregate_type, enqueue.aggregate_id, enqueue.event_type, enqueue.payload, media, extra, nullif(enqueue.traceparent, ''))
      ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS added = ROW_COUNT;
  ELSE
    BEGIN
      INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload, content_type, headers, traceparent)
        VALUES (tail::uuid, space, enqueue.aggregate_type, enqueue.aggregate_id, enqueue.event_type, enqueue.payload, media, extra, nullif(enqueue.traceparent, ''))
        ON CONFLICT DO NOTHING;
      GET DIAGNOSTICS added = ROW_COUNT;
    EXCEPTION WHEN check_violation THEN
      GET STACKED DIAGNOSTICS place = SCHEMA_NAME, rule = CONSTRAINT_NAME;
      IF place <> 'onceward' THEN
        RAISE; -- of a trigger that is not ours
      ELSIF rule <> '' THEN
        RAISE EXCEPTION 'invalid event %: the outbox refuses it by the constraint %', key, rule
          USING ERRCODE = 'OW003', SCHEMA = 'onceward', TABLE = 'outbox', CONSTRAINT = rule, HINT = 'docs/contract.md has the rules of the outbox.';
      END IF;
      RAISE EXCEPTION 'no open partition covers the event time % of key "%"', at, key
        USING ERRCODE = 'OW004', HINT = 'outboxctl partitions maintain --config relay.yaml makes those of today and the days to come; none of a day that is over. What may come later needs a larger keep beforehand, or a table of your own for its id and a new key: docs/producing.md, The key.';
    END;
  END IF;
  IF added = 1 THEN
    RETURN 'enqueued';
  END IF;

  -- In READ COMMITTED this statement has a snapshot of its own and sees the row
  -- that the INSERT met, also when it was committed while the INSERT waited.
  SELECT o.namespace = space AND o.aggregate_type = enqueue.aggregate_type AND o.aggregate_id = enqueue.aggregate_id
      AND o.event_type = enqueue.event_type AND o.payload IS NOT DISTINCT FROM enqueue.payload
      AND o.content_type = media AND o.headers IS NOT DISTINCT FROM extra
    INTO same FROM onceward.outbox AS o WHERE o.id = tail::uuid;
  IF same THEN
    RETURN 'duplicate';
  ELSIF same IS NULL AND pg_catalog.row_security_active('onceward.outbox'::pg_catalog.regclass) THEN
    RAISE EXCEPTION 'idempotency key "%" reused: it belongs to an event of another namespace, which this role may not see', key
      USING ERRCODE = 'OW001', HINT = 'Make a new key for a new event.';
  ELSIF same IS NULL THEN
    RAISE EXCEPTION 'the event that had the key "%" was removed in this moment', key
      USING ERRCODE = '40001', HINT = 'Try the whole transaction again.';
  END IF;
  RAISE EXCEPTION 'idempotency key "%" reused with other content', key
    USING ERRCODE = 'OW001', HINT = 'Make a new key for a new event.';
END
$enqueue$;
-- +goose StatementEnd

ALTER FUNCTION onceward.refuse_insert() SET search_path = pg_catalog, pg_temp;

-- +goose Down
-- The functions stay as they are: without the constraints they are right too.
ALTER TABLE onceward.outbox
  DROP CONSTRAINT IF EXISTS outbox_namespace,
  DROP CONSTRAINT IF EXISTS outbox_aggregate_type,
  DROP CONSTRAINT IF EXISTS outbox_aggregate_id,
  DROP CONSTRAINT IF EXISTS outbox_event_type,
  DROP CONSTRAINT IF EXISTS outbox_content_type,
  DROP CONSTRAINT IF EXISTS outbox_payload,
  DROP CONSTRAINT IF EXISTS outbox_headers,
  DROP CONSTRAINT IF EXISTS outbox_traceparent;
