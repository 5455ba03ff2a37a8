-- +goose Up
-- What enqueue advises for a key of a time that no open partition covers: partitions are made
-- for today and the days to come, never again for a day that is over. 00005 says so by itself now,
-- because it is run again to rebuild what leans on foreign functions.
-- +goose StatementBegin
DO $do$
BEGIN
  EXECUTE pg_catalog.replace(
    pg_catalog.pg_get_functiondef('onceward.enqueue(text, text, text, text, bytea, text, jsonb, text)'::regprocedure),
    'Run outboxctl partitions maintain, or make the key nearer to the event.',
    'outboxctl partitions maintain --config relay.yaml makes those of today and the days to come; none of a day that is over. What may come later needs a larger keep beforehand, or a table of your own for its id and a new key: docs/producing.md, The key.');
END
$do$;
-- +goose StatementEnd

-- rest_relay lets a relay rest or go on or, where routes are named, these of it, and writes
-- down who said so, and why if that is given.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION onceward.rest_relay(slot text, paused boolean, routes text[], reason text)
RETURNS TABLE (relay text, rests boolean, resting_routes text[]) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $rest$
BEGIN
  RETURN QUERY UPDATE onceward.relay_state AS r SET
      paused = CASE WHEN pg_catalog.cardinality(rest_relay.routes) = 0 THEN rest_relay.paused ELSE r.paused END,
      paused_routes = CASE WHEN rest_relay.paused
        THEN ARRAY(SELECT DISTINCT t.route FROM pg_catalog.unnest(r.paused_routes || rest_relay.routes) AS t (route) ORDER BY t.route)
        ELSE ARRAY(SELECT t.route FROM pg_catalog.unnest(r.paused_routes) AS t (route) WHERE t.route <> ALL (rest_relay.routes) ORDER BY t.route) END
    WHERE r.slot = rest_relay.slot RETURNING r.relay, r.paused, r.paused_routes;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no relay with slot %: `outboxctl status` names them', rest_relay.slot USING ERRCODE = 'OW006';
  END IF;
  INSERT INTO onceward.relay_actions (action, slot, target, reason)
    SELECT CASE WHEN rest_relay.paused THEN 'pause' ELSE 'resume' END, rest_relay.slot, t.target, COALESCE(rest_relay.reason, '')
    FROM pg_catalog.unnest(CASE WHEN pg_catalog.cardinality(rest_relay.routes) = 0 THEN ARRAY[''] ELSE rest_relay.routes END) AS t (target);
END
$rest$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION onceward.rest_relay(text, boolean, text[], text) FROM PUBLIC;
COMMENT ON FUNCTION onceward.rest_relay(text, boolean, text[], text) IS
  'Pauses or resumes a relay or, where routes are named, these of it. Written down in relay_actions, by route; the relay itself is the empty target.';

-- retire_relay as it was, but that a relay that never began is forgotten too: there is but
-- what its processes said of themselves. What dead ones said goes with any relay. A process
-- of another database of the server is not this relay's: in a copy it is the original's.
-- +goose StatementBegin
DO $do$
BEGIN
  EXECUTE pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(pg_catalog.pg_get_functiondef('onceward.retire_relay(text, text)'::regprocedure),
    ' FOR UPDATE;
  IF NOT FOUND THEN', ' FOR UPDATE;
  IF NOT FOUND AND pg_catalog.to_regclass(''onceward.relay_health'') IS NOT NULL THEN
    SELECT pg_catalog.max(h.relay) INTO relay_name FROM onceward.relay_health AS h WHERE h.slot = retire_relay.slot;
    IF EXISTS (SELECT FROM onceward.relay_health AS h JOIN pg_catalog.pg_stat_activity AS a ON a.datname = pg_catalog.current_database() AND a.application_name = ''onceward process '' || h.process WHERE h.slot = retire_relay.slot) THEN
      RAISE EXCEPTION ''a process of relay % lives: stop it first'', relay_name USING ERRCODE = ''OW006'';
    END IF;
  END IF;
  IF relay_name IS NULL THEN'),
    '  DELETE FROM onceward.relay_state AS r WHERE', '  IF pg_catalog.to_regclass(''onceward.relay_health'') IS NOT NULL THEN
    DELETE FROM onceward.relay_health AS h WHERE h.slot = retire_relay.slot
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_activity AS a WHERE a.datname = pg_catalog.current_database() AND a.application_name = ''onceward process '' || h.process);
  END IF;
  DELETE FROM onceward.relay_state AS r WHERE'),
    'pg_catalog.format(''relay %s, %s dead letters discarded'', relay_name, letters)',
    'pg_catalog.format(''relay %s, %s discarded'', relay_name, CASE letters WHEN 1 THEN ''1 dead letter'' ELSE letters || '' dead letters'' END)');
END
$do$;
-- +goose StatementEnd

-- adopt_kafka as it was, but that who streams from a slot of this name in another database of
-- the server is not this relay.
-- +goose StatementBegin
DO $do$
BEGIN
  EXECUTE pg_catalog.replace(pg_catalog.replace(pg_catalog.pg_get_functiondef('onceward.adopt_kafka(text, text, text, text, text)'::regprocedure),
    'p.slot_name = adopt_kafka.slot AND p.active', 'p.slot_name = adopt_kafka.slot AND p.database = pg_catalog.current_database() AND p.active'),
    '%s events in doubt, %s dead letters open again'',
      COALESCE(relay.kafka_cluster, ''(not known)''), adopt_kafka.cluster, doubted, letters)',
    '%s in doubt, %s open again'',
      COALESCE(relay.kafka_cluster, ''(not known)''), adopt_kafka.cluster, CASE doubted WHEN 1 THEN ''1 event'' ELSE doubted || '' events'' END,
      CASE letters WHEN 1 THEN ''1 dead letter'' ELSE letters || '' dead letters'' END)');
END
$do$;
-- +goose StatementEnd

-- decide_gap as it was, but that it counts one event as one.
-- +goose StatementBegin
DO $do$
BEGIN
  EXECUTE pg_catalog.replace(pg_catalog.pg_get_functiondef('onceward.decide_gap(uuid, text, text, text)'::regprocedure),
    '%s events when it was found'', decide_gap.gap_id, gap.state, gap.events)',
    '%s when it was found'', decide_gap.gap_id, gap.state, CASE gap.events WHEN 1 THEN ''1 event'' ELSE gap.events || '' events'' END)');
END
$do$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DO $do$
BEGIN
  EXECUTE pg_catalog.replace(pg_catalog.pg_get_functiondef('onceward.decide_gap(uuid, text, text, text)'::regprocedure),
    '%s when it was found'', decide_gap.gap_id, gap.state, CASE gap.events WHEN 1 THEN ''1 event'' ELSE gap.events || '' events'' END)',
    '%s events when it was found'', decide_gap.gap_id, gap.state, gap.events)');
END
$do$;
-- +goose StatementEnd
-- +goose StatementBegin
DO $do$
BEGIN
  EXECUTE pg_catalog.replace(pg_catalog.replace(pg_catalog.pg_get_functiondef('onceward.adopt_kafka(text, text, text, text, text)'::regprocedure),
    'p.slot_name = adopt_kafka.slot AND p.database = pg_catalog.current_database() AND p.active', 'p.slot_name = adopt_kafka.slot AND p.active'),
    '%s in doubt, %s open again'',
      COALESCE(relay.kafka_cluster, ''(not known)''), adopt_kafka.cluster, CASE doubted WHEN 1 THEN ''1 event'' ELSE doubted || '' events'' END,
      CASE letters WHEN 1 THEN ''1 dead letter'' ELSE letters || '' dead letters'' END)',
    '%s events in doubt, %s dead letters open again'',
      COALESCE(relay.kafka_cluster, ''(not known)''), adopt_kafka.cluster, doubted, letters)');
END
$do$;
-- +goose StatementEnd
-- +goose StatementBegin
DO $do$
BEGIN
  EXECUTE pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(pg_catalog.pg_get_functiondef('onceward.retire_relay(text, text)'::regprocedure),
    ' FOR UPDATE;
  IF NOT FOUND AND pg_catalog.to_regclass(''onceward.relay_health'') IS NOT NULL THEN
    SELECT pg_catalog.max(h.relay) INTO relay_name FROM onceward.relay_health AS h WHERE h.slot = retire_relay.slot;
    IF EXISTS (SELECT FROM onceward.relay_health AS h JOIN pg_catalog.pg_stat_activity AS a ON a.datname = pg_catalog.current_database() AND a.application_name = ''onceward process '' || h.process WHERE h.slot = retire_relay.slot) THEN
      RAISE EXCEPTION ''a process of relay % lives: stop it first'', relay_name USING ERRCODE = ''OW006'';
    END IF;
  END IF;
  IF relay_name IS NULL THEN', ' FOR UPDATE;
  IF NOT FOUND THEN'),
    '  IF pg_catalog.to_regclass(''onceward.relay_health'') IS NOT NULL THEN
    DELETE FROM onceward.relay_health AS h WHERE h.slot = retire_relay.slot
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_activity AS a WHERE a.datname = pg_catalog.current_database() AND a.application_name = ''onceward process '' || h.process);
  END IF;
  DELETE FROM onceward.relay_state AS r WHERE', '  DELETE FROM onceward.relay_state AS r WHERE'),
    'pg_catalog.format(''relay %s, %s discarded'', relay_name, CASE letters WHEN 1 THEN ''1 dead letter'' ELSE letters || '' dead letters'' END)',
    'pg_catalog.format(''relay %s, %s dead letters discarded'', relay_name, letters)');
END
$do$;
-- +goose StatementEnd
DROP FUNCTION onceward.rest_relay(text, boolean, text[], text);
